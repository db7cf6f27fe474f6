"""The imports that the service was started with.

registry  reads specs from a folder, plans, starts and resumes runs
monitor   watches running imports: progress, reports, and the end of a run
"""
