"""What people look at: the API behind the dashboard, and the same in a terminal. It only reads."""
