//! A search for findings, which the daemon gives to the parts that report them to people.

use std::fmt;
use std::sync::Arc;

use crate::check::Finding;

/// A search for findings about this box. Clones share it.
#[derive(Clone)]
pub struct FindingsSource(Arc<dyn Fn() -> Vec<Finding> + Send + Sync>);

impl FindingsSource {
    pub fn new(search: impl Fn() -> Vec<Finding> + Send + Sync + 'static) -> Self {
        Self(Arc::new(search))
    }

    /// Searches now. It may block for some milliseconds.
    pub fn search(&self) -> Vec<Finding> {
        (self.0)()
    }
}

impl fmt::Debug for FindingsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FindingsSource")
    }
}
