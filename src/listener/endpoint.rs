//! An address to listen on, and the service that answers there.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::address::{ListenAddress, PeerNetwork};

/// A listener: what it serves, and to whom. With port 0 several listeners may have the same address, and a caller must
/// not get to one that serves more than the listener it connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerEndpoint {
    /// The name of the [`ConnectionService`](crate::ConnectionService) of its connections.
    pub service: Cow<'static, str>,
    pub address: ListenAddress,
    /// The networks that it serves without encryption; empty for a listener that serves everybody.
    pub peers: Vec<PeerNetwork>,
}

impl ListenerEndpoint {
    /// A listener that serves everybody.
    pub fn new(service: &'static str, address: ListenAddress) -> Self {
        Self { service: service.into(), address, peers: Vec::new() }
    }

    /// Returns `true` if a caller with this address is served.
    pub fn admits(&self, ip: IpAddr) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|network| network.contains(ip))
    }
}
