//! Who this box is, who its callers are and what they may do, and what keeps its secrets.
#![forbid(unsafe_code)]

pub mod access;
pub mod access_config;
pub mod api_key;
pub mod authentication;
pub mod certificate;
pub mod device;
pub mod keys;
mod listed_names;
pub mod sealing;
