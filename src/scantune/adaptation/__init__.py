"""Adaptation of a network to one scan, or to a folder of scans."""
