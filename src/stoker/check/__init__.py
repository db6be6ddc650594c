"""What is wrong with this script: a parser of batch scripts and one function per rule."""
