//! The stores.

pub mod ledge;
pub mod redb;
pub mod sled;
