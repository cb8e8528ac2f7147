//! `ledge update trial`: the process in which the daemon tries a release. Not for people.

use crate::cli::{Exit, block_on};
use crate::updates::trial::{What, child, model};

/// Runs the verb.
pub fn run() -> anyhow::Result<Exit> {
    let order = child::begin()?;
    let outcome = match &order.what {
        What::Model(how) => block_on(model::run(&order, how))??,
    };
    child::finish(outcome)?;
    Ok(Exit::Success)
}
