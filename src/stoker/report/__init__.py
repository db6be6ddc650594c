"""What do people see: values rendered as text and JSON."""
