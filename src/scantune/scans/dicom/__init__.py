"""DICOM: series and multi-frame files are read, and segmentations of them are written."""
