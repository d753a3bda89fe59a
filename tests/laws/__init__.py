"""Laws: properties that hold whatever the sizes, seeds and settings; see docs/testing.md."""
