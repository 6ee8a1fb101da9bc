"""What people look at: the plan, the check and the trace."""
