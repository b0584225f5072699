"""What a person looks at: progress, tables, later pictures and pages."""
