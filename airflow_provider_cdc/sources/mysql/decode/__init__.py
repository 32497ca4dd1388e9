"""Values: from the bytes of rows and of log images into Arrow arrays, the same from both."""
