#!/bin/sh
# Stands for the program of a node that is never ready: it says something, and stays. It is no file of a test's own: one that was just
# written cannot be run while a process that another thread started at that moment still holds it open.
echo it waits for nothing
exec sleep 600
