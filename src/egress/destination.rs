//! The destinations that the sections of the configuration name, in one form: checks of the configuration need to know
//! no section.

use std::collections::BTreeMap;

use ledge_base::toml_check::{ValueProblem, within};

use super::address::HostPort;
use super::policy::EgressConfig;

/// A destination that a section of the configuration names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredDestination {
    /// The key that names it.
    pub key: String,
    pub at: HostPort,
    /// The proxy through which this box connects to it. `None`: the connection is direct.
    pub proxy: Option<ConfiguredProxy>,
    pub is_encrypted: bool,
    /// The mistake to report when the connection is not encrypted and leaves this machine. `None`: it is allowed.
    pub plaintext_problem: Option<String>,
}

/// A proxy that connects to a destination (HTTP CONNECT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredProxy {
    /// The key that names it.
    pub key: String,
    pub at: HostPort,
}

impl ConfiguredDestination {
    /// The same with the keys of the section that contains it.
    #[must_use]
    pub fn in_section(mut self, section: &str) -> Self {
        let proxy = self.proxy.as_mut().map(|proxy| &mut proxy.key);
        for key in std::iter::once(&mut self.key).chain(proxy) {
            *key = within(section, key);
        }
        self
    }

    /// Reports a connection that others could read although it must not be so.
    pub fn plaintext_refusal(&self) -> Option<&str> {
        let is_exposed = !self.is_encrypted && !self.at.host.is_loopback();
        self.plaintext_problem.as_deref().filter(|_| is_exposed)
    }

    /// Mistakes of the configuration.
    pub fn problems(&self, egress: &EgressConfig) -> Vec<ValueProblem> {
        let plaintext = self.plaintext_refusal().map(|problem| ValueProblem::new(&self.key, problem));
        let denied = |key: &str, at: &HostPort| egress.grant(at).err().map(|problem| ValueProblem::new(key, problem));
        let here = denied(&self.key, &self.at);
        let proxy = self.proxy.as_ref().and_then(|proxy| denied(&proxy.key, &proxy.at));
        plaintext.into_iter().chain(here).chain(proxy).collect()
    }
}

/// The destinations to which this box connects only through a proxy, each with its proxy.
pub fn behind_proxies(destinations: &[ConfiguredDestination]) -> BTreeMap<HostPort, HostPort> {
    let first_hop = |to: &ConfiguredDestination| to.proxy.as_ref().map_or(&to.at, |proxy| &proxy.at).clone();
    let direct: Vec<HostPort> = destinations.iter().map(first_hop).collect();
    let behind = destinations.iter().filter_map(|to| Some((to.at.clone(), to.proxy.as_ref()?.at.clone())));
    behind.filter(|(to, _)| !direct.contains(to)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    fn destination(at: &str, proxy: Option<&str>) -> ConfiguredDestination {
        ConfiguredDestination {
            key: "url".into(),
            at: at.parse().unwrap(),
            proxy: proxy.map(|at| ConfiguredProxy { key: "proxy".into(), at: at.parse().unwrap() }),
            is_encrypted: false,
            plaintext_problem: Some("is not encrypted".into()),
        }
    }

    #[test]
    fn a_destination_is_checked_before_there_is_a_connection() {
        let egress: EgressConfig = toml_check::parse("f", "[[allow]]\nhost = 'a:1'\nregion = 'eu'").unwrap();
        let problems = |at| ConfiguredDestination { is_encrypted: true, ..destination(at, None) }.problems(&egress);
        assert_eq!(problems("A:1"), []);
        assert_eq!(problems("localhost:1883"), []);
        let [problem] = problems("a:2").try_into().unwrap();
        assert!(problem.key == "url" && problem.message.contains("`host = \"a:2\"`"), "{problem:?}");
    }

    #[test]
    fn mistakes_carry_the_key_of_the_destination_or_of_its_proxy() {
        let egress: EgressConfig = toml_check::parse("f", "[[allow]]\nhost = 'a:1'\nregion = 'eu'").unwrap();
        let keys = |to: ConfiguredDestination| -> Vec<String> {
            to.in_section("part").problems(&egress).into_iter().map(|problem| problem.key).collect()
        };
        assert_eq!(keys(destination("127.0.0.1:1", None)), [""; 0]);
        assert_eq!(keys(destination("a:1", None)), ["part.url"]);
        assert_eq!(keys(destination("b:1", None)), ["part.url", "part.url"]);
        let encrypted = ConfiguredDestination { is_encrypted: true, ..destination("a:1", Some("p:1")) };
        assert_eq!(keys(encrypted.clone()), ["part.proxy"]);
        assert_eq!(keys(ConfiguredDestination { proxy: None, ..encrypted }), [""; 0]);
        let permitted = ConfiguredDestination { plaintext_problem: None, ..destination("a:1", None) };
        assert_eq!(keys(permitted), [""; 0]);
    }

    #[test]
    fn what_is_also_connected_to_directly_is_not_behind_its_proxy() {
        let behind = |destinations: &[(&str, Option<&str>)]| -> Vec<String> {
            let all: Vec<_> = destinations.iter().map(|(at, proxy)| destination(at, *proxy)).collect();
            behind_proxies(&all).into_iter().map(|(to, proxy)| format!("{to} {proxy}")).collect()
        };
        assert_eq!(behind(&[("a:1", Some("p:1")), ("b:1", None)]), ["a:1 p:1"]);
        assert_eq!(behind(&[("a:1", Some("p:1")), ("a:1", None)]), [""; 0]);
        assert_eq!(behind(&[("a:1", Some("p:1")), ("b:1", Some("a:1"))]), ["b:1 a:1"]);
    }
}
