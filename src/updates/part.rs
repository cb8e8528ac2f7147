//! Updates as a part of the daemon.

use std::fmt;
use std::sync::Arc;

use ledge_base::clock;
use ledge_identity::access::Access;
use ledge_identity::sealing::Rekey;
use ledge_part::Part;
use ledge_part::handler_context::HandlerContext;
use ledge_part::route::{BoundRoute, bind};
use prometheus_client::encoding::DescriptorEncoder;

use crate::Updates;
use crate::http::{ROUTES, ServedUpdates, visible};
use crate::metrics;

/// Updates as a part. The updater itself has a thread of its own.
pub struct UpdatesPart {
    /// `None` without `updates.repository`.
    pub updates: Option<Updates>,
    /// `None` on a box that never had updates.
    pub store: Option<Arc<dyn Rekey>>,
}

impl fmt::Debug for UpdatesPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdatesPart").field("updates", &self.updates).finish_non_exhaustive()
    }
}

impl Part for UpdatesPart {
    fn name(&self) -> &'static str {
        "updates"
    }

    fn routes(&self, context: &HandlerContext) -> Vec<BoundRoute> {
        bind(ROUTES, &ServedUpdates { updates: self.updates.clone(), context: context.clone() })
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, access: &Access) -> fmt::Result {
        let Some(updates) = &self.updates else { return Ok(()) };
        metrics::encode(encoder, &visible(updates.status(), access), clock::unix_millis())
    }

    fn encrypted_store(&self) -> Option<Arc<dyn Rekey>> {
        self.store.clone()
    }
}
