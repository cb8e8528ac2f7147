//! The log, and the metrics of the process and the machine.

mod event_name;
mod journal;
pub mod logging;
pub mod machine;
pub mod messages;
pub mod process;
pub mod service_usage;
pub mod system;
