"""Helpers of `preflight`: checks of the lake and of earlier runs, and the plan in words."""
