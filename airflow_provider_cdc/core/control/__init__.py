"""Control of runs in progress: the acts of operators, the limits that apply, and the log of what was done"""
