//! The section `[grpc]` of the configuration.

use std::path::Path;

use ledge_base::toml_check::ValueProblem;
use ledge_listener::ListenerEndpoint;
use ledge_listener::address::{self, ListenAddress, one_or_many};
use ledge_part::section::ConfigSection;
use serde::{Deserialize, Serialize};

use super::SERVICE;

/// The listeners of gRPC. Limits and certificates are those of `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcConfig {
    /// The addresses; empty is off. The default port of Triton is 8001.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<ListenAddress>,
}

impl GrpcConfig {
    /// Every listener.
    pub fn endpoints(&self) -> Vec<ListenerEndpoint> {
        self.listen.iter().map(|address| ListenerEndpoint::new(SERVICE, address.clone())).collect()
    }
}

impl ConfigSection for GrpcConfig {
    fn resolve(&mut self, root: &Path) {
        address::resolve_sockets(&mut self.listen, root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        address::problems(&self.listen)
    }
}
