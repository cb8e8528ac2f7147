//! The parts of `tests/it/feature_faults` for cutting a program off: the shim, the record of its calls, and the disk
//! that a power cut leaves.
#![expect(dead_code, reason = "shared with tests/it, which uses the rest")]

#[path = "../it/feature_faults/disk.rs"]
pub mod disk;
#[path = "../it/feature_faults/points.rs"]
pub mod points;
#[path = "../it/feature_faults/seed.rs"]
pub mod seed;
#[path = "../it/feature_faults/shim.rs"]
pub mod shim;
