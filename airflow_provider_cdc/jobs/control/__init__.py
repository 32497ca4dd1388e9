"""Control of a step in progress: pause, stop, limits, and the governor"""
