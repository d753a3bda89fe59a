"""Train contestants on identical streams, evaluate them alike, and say whether memory pays."""
