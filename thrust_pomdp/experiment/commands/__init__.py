"""What ``python -m thrust_pomdp COMMAND`` and the scripts do."""
