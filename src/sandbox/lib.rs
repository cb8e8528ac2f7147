//! x
#![forbid(unsafe_code)]

mod seal;
mod report;
mod limits;
mod namespaces;
mod files;
mod system_calls;
mod filter;
mod writable_code;
#[cfg(feature = "probe")]
pub mod probe;

pub use files::SYSTEM_FILES;
pub use report::{Finding, Mechanism, SealReport, State};
pub use seal::{Limits, Seal};
pub use writable_code::deny_writable_code;
