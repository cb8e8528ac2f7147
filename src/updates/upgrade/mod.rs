//! Upgrades of Ledge itself: packages that the offline role `packages` signed, in the waves of a rollout.
//!
//! The daemon cannot install a package, and must not be able to. It copies the signed metadata and the package into a
//! folder ([`courier`]); a service of root verifies all of it again from metadata of its own, installs the package by the
//! package manager, watches the new version, and goes back to the package before when it is not healthy ([`steps`]).
//!
//! Files, in reading order:
//! * `config.rs` - `[upgrades]`
//! * `package.rs` - the package that this Ledge was installed from, and the packages of a release
//! * `record.rs` - the state of root's service, which the daemon reports
//! * `mirror.rs` - a repository copied into a folder, for root's service
//! * `courier.rs` - the daemon's task: it copies what a rollout names, and asks root's service to look
//! * `order.rs` - the order as root's service verifies it
//! * `steps.rs` - the steps of root's service
//! * `tests.rs` - upgrades with power cuts at each step
//!
//! Invariants:
//! * Root's service trusts no file of the daemon: it takes a package only with the signatures of the roles `packages` and
//!   `fleet`, from metadata that root alone writes, and never an older one.
//! * The package that was installed before is kept until the new one has passed, and each step is on the disk before it is
//!   taken.

pub mod config;
pub mod courier;
mod mirror;
pub mod order;
pub mod package;
pub mod record;
pub mod steps;
#[cfg(test)]
mod tests;
