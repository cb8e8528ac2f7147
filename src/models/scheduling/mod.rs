//! Running models on one budget of cores. It opens no socket and writes no file, except OpenVINO's cache of compiled models.

pub mod batcher;
pub mod engine;
pub mod instance;
pub mod queue;
pub mod scheduler;
pub mod terms;
pub mod warm_up;
mod worker;
