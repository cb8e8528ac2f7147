//! Who this box is.

pub mod device;
