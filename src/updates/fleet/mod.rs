//! What this box tells the platform that looks after it, and what it takes from it: the signed rollout manifest, and what
//! of it is for this box now.

pub mod decide;
pub mod fuzz;
pub mod kept;
pub mod look;
pub mod manifest;
mod pace;
pub mod poller;
pub mod reported;
pub mod waves;
pub mod window;
