//! A full disk, and room again.
