//! TLS as a part of the daemon. The server itself is not a part: it serves all parts.

use std::fmt;

use ledge_identity::access::CallerAccess;
use ledge_part::{PartEnvironment, Subsystem};
use prometheus_client::encoding::DescriptorEncoder;

use crate::tls::{self, ServerTls};

impl Subsystem for ServerTls {
    fn name(&self) -> &'static str {
        "https"
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>, _access: &CallerAccess) -> fmt::Result {
        tls::metrics::encode(encoder, &self.status())
    }

    fn spawn(&self, environment: &PartEnvironment) -> Result<(), String> {
        self.keep_current(&environment.shutdown)
            .map_err(|error| format!("the handler of SIGHUP cannot be installed: {error}"))
    }
}
