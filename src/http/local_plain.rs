//! `[[http.local_plain]]`: addresses without encryption, for cameras and their software in a network that the operator
//! names, because much of that software cannot use TLS with a private authority.
//!
//! Only the routes for pictures and texts are served there, to the named networks, and with an API key; those for
//! documents only to callers on this machine. Anyone who can listen to that network can read the key and the pictures.

use std::net::SocketAddr;

use ledge_base::toml_check::ValueProblem;
use ledge_listener::ListenerEndpoint;
use ledge_listener::address::{ListenAddress, PeerNetwork};
use ledge_part::check::Finding;
use serde::{Deserialize, Serialize};

use super::SERVICE;

/// An address without encryption, and the networks that it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainLocalListener {
    pub listen: SocketAddr,
    /// The networks of the callers. Connections from elsewhere are closed.
    pub peers: Vec<PeerNetwork>,
}

impl PlainLocalListener {
    /// The listener, which serves only these networks.
    pub fn endpoint(&self) -> ListenerEndpoint {
        ListenerEndpoint { peers: self.peers.clone(), ..ListenerEndpoint::new(SERVICE, self.address()) }
    }

    fn address(&self) -> ListenAddress {
        ListenAddress::Tcp(self.listen)
    }

    /// The networks, for people.
    pub fn networks(&self) -> String {
        self.peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    fn problem(&self) -> Option<(String, String)> {
        let Self { listen, peers } = self;
        if peers.is_empty() {
            let reason = "is empty: name the networks of the callers, such as [\"192.168.1.0/24\"]";
            return Some(("peers".into(), reason.into()));
        }
        if listen.ip().to_canonical().is_unspecified() {
            let reason = format!(
                "{listen} is every interface of this machine: name the address of the one that the cameras are on, such \
                 as \"192.168.1.10:{}\"",
                listen.port()
            );
            return Some(("listen".into(), reason));
        }
        let everybody = peers.iter().position(|network| network.prefix_len() < 8);
        everybody.map(|index| {
            let reason = "is too large: without encryption only a network of your own is served, of at most /8";
            (format!("peers[{index}]"), reason.into())
        })
    }
}

/// The mistakes in the list, with keys within `[http]`. `others` are the addresses of `http.listen`.
pub fn problems(listeners: &[PlainLocalListener], others: &[ListenAddress]) -> Vec<ValueProblem> {
    let mut problems = Vec::new();
    for (index, plain) in listeners.iter().enumerate() {
        let key = |key: &str| format!("local_plain[{index}].{key}");
        problems.extend(plain.problem().map(|(place, reason)| ValueProblem::new(key(&place), reason)));
        let earlier = listeners.iter().take(index).map(PlainLocalListener::address);
        if others.iter().cloned().chain(earlier).any(|other| other.conflicts_with(&plain.address())) {
            let reason = format!("{} is named twice", plain.listen);
            problems.push(ValueProblem::new(key("listen"), reason));
        }
    }
    problems
}

/// The findings of `ledge doctor`: one for each unencrypted address.
pub fn findings(listeners: &[PlainLocalListener]) -> impl Iterator<Item = Finding> {
    listeners.iter().map(|plain| {
        let detail = format!("{} serves pictures without encryption to {}", plain.listen, plain.networks());
        let advice = "anyone who can listen to this network can read the pictures and the API keys: put a TLS proxy in \
                      front of it (docs/vision.md), or remove [[http.local_plain]]";
        Finding::warn("local plain", detail, advice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(listen: &str, peers: &[&str]) -> PlainLocalListener {
        PlainLocalListener {
            listen: listen.parse().unwrap(),
            peers: peers.iter().map(|network| network.parse().unwrap()).collect(),
        }
    }

    #[test]
    fn only_the_named_networks_are_served() {
        let lan = plain("192.168.1.10:8001", &["192.168.1.0/24", "10.1.2.3", "fd00::/64"]);
        for served in ["192.168.1.77", "::ffff:192.168.1.77", "10.1.2.3", "fd00::1"] {
            assert!(lan.endpoint().admits(served.parse().unwrap()), "{served}");
        }
        for other in ["192.168.2.1", "10.1.2.4", "127.0.0.1", "fd00:0:0:1::1"] {
            assert!(!lan.endpoint().admits(other.parse().unwrap()), "{other}");
        }
        assert!("192.168.1.0/33".parse::<PeerNetwork>().is_err());
        assert!("camera.lan".parse::<PeerNetwork>().is_err());
    }

    #[test]
    fn everybody_every_interface_and_nobody_are_mistakes() {
        let keys = |listeners: &[PlainLocalListener]| {
            let others = ["127.0.0.1:8000".parse().unwrap()];
            problems(listeners, &others).into_iter().map(|problem| problem.key).collect::<Vec<_>>()
        };
        assert_eq!(keys(&[plain("192.168.1.10:8001", &["192.168.1.0/24"])]), [""; 0]);
        assert_eq!(keys(&[plain("192.168.1.10:8001", &[])]), ["local_plain[0].peers"]);
        assert_eq!(keys(&[plain("0.0.0.0:8001", &["10.0.0.0/8"])]), ["local_plain[0].listen"]);
        assert_eq!(keys(&[plain("10.0.0.1:1", &["10.0.0.0/8", "0.0.0.0/0"])]), ["local_plain[0].peers[1]"]);
        assert_eq!(keys(&[plain("10.0.0.1:1", &["::/0"])]), ["local_plain[0].peers[0]"]);
        assert_eq!(keys(&[plain("127.0.0.1:8000", &["127.0.0.0/8"])]), ["local_plain[0].listen"]);
        let one = plain("10.0.0.1:1", &["10.0.0.0/8"]);
        assert_eq!(keys(&[one.clone(), one]), ["local_plain[1].listen"]);
    }
}
