"""`labelflow data check`: what is wrong with a folder of images, and what is in it."""
