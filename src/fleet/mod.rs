//! What this box tells the platform that looks after it.

pub mod reported;
