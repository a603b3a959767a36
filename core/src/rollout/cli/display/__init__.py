"""How a running job is shown. Every display consumes the job's events; none of them can hurt the job."""
