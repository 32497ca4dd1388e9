"""Values: from the bytes of a COPY and the texts of log images into Arrow arrays, the same from both."""
