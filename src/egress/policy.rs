//! The section `[egress]` of the configuration: the contents that may leave this box, and their destinations.

use std::fmt;

use ledge_base::names::RegionName;
use ledge_base::toml_check::ValueProblem;
use serde::{Deserialize, Serialize};

use super::address::HostPort;

/// The region of destinations on this box.
pub const LOCAL_REGION: &str = "local";

/// The closed list of contents that may leave this box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EgressContent {
    /// Handshakes, acknowledgements, subscriptions and keep-alives: no data. Every destination may get it.
    #[serde(skip)]
    Protocol,
    /// Answers to inference calls, errors included, and the messages that bindings publish.
    #[serde(rename = "answers")]
    Answer,
    /// The online state of this box.
    #[serde(rename = "presence")]
    Presence,
    /// The versions that this box runs, and its condition.
    #[serde(rename = "reports")]
    Report,
    /// Inference calls to a box elsewhere, as `ledge-bench` makes them. Ledge answers calls and makes none.
    #[serde(rename = "calls")]
    Call,
    /// Requests for files of the update repository and for pictures of cameras: their names, the login of a camera, and
    /// nothing of this box.
    #[serde(rename = "requests")]
    Request,
    /// Records of the audit log, and their proofs.
    #[serde(rename = "audit")]
    Audit,
    /// Pictures of cameras, with the objects that were found drawn into them.
    #[serde(rename = "pictures")]
    Picture,
    /// The findings about this box, for the receivers of `[[alert]]`, and its figures that are unusual, for the broker.
    #[serde(rename = "alerts")]
    Alert,
    /// Fields and text of the documents of `[[inbox]]`. Only an entry that names it permits it.
    #[serde(rename = "documents")]
    Document,
    /// Requests for the certificate of this box, to the platform whose member it is.
    #[serde(rename = "certificates")]
    CertificateRequest,
    /// Answers to the questions of the platform, and the requests that look for questions. Only an entry that names it
    /// permits it.
    #[serde(rename = "diagnoses")]
    Diagnosis,
}

impl EgressContent {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Protocol,
        Self::Answer,
        Self::Presence,
        Self::Report,
        Self::Call,
        Self::Request,
        Self::Audit,
        Self::Picture,
        Self::Alert,
        Self::Document,
        Self::CertificateRequest,
        Self::Diagnosis,
    ];

    /// True for contents that only an entry with their name permits.
    pub fn is_named_only(self) -> bool {
        matches!(self, Self::Document | Self::Diagnosis)
    }

    /// The name in the configuration and the metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Answer => "answers",
            Self::Presence => "presence",
            Self::Report => "reports",
            Self::Call => "calls",
            Self::Request => "requests",
            Self::Audit => "audit",
            Self::Picture => "pictures",
            Self::Alert => "alerts",
            Self::Document => "documents",
            Self::CertificateRequest => "certificates",
            Self::Diagnosis => "diagnoses",
        }
    }
}

impl fmt::Display for EgressContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The destinations that may get data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EgressConfig {
    /// The regions where data may be. Empty allows every region that an entry names.
    pub residency: Vec<RegionName>,
    pub allow: Vec<AllowedDestination>,
}

/// A destination that may be connected to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedDestination {
    pub host: HostPort,
    pub region: RegionName,
    /// The contents that may be sent there, besides the protocol itself.
    #[serde(default = "everything_unnamed")]
    pub send: Vec<EgressContent>,
}

/// The contents that a destination may get for which none are named: all but the text of documents and diagnoses.
pub fn everything_unnamed() -> Vec<EgressContent> {
    EgressContent::ALL
        .into_iter()
        .filter(|content| *content != EgressContent::Protocol && !content.is_named_only())
        .collect()
}

/// The permission to send to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressGrant {
    pub region: String,
    /// The contents that may be sent there, besides the protocol itself.
    send: Vec<EgressContent>,
}

impl EgressGrant {
    /// True if `content` may be sent there.
    pub fn permits(&self, content: EgressContent) -> bool {
        content == EgressContent::Protocol || self.send.contains(&content)
    }
}

impl EgressGrant {
    /// The same, limited to `contents`.
    pub(super) fn limited_to(mut self, contents: &[EgressContent]) -> Self {
        self.send.retain(|content| contents.contains(content));
        self
    }
}

impl EgressConfig {
    /// Mistakes between well-formed values: the key within the section, and the remedy.
    pub fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        for (index, entry) in self.allow.iter().enumerate() {
            if self.allow.iter().take(index).any(|earlier| earlier.host == entry.host) {
                let problem = format!("{} is named twice", entry.host);
                problems.push(ValueProblem::new(format!("allow[{index}].host"), problem));
            }
            let region = entry.region.as_str();
            let problem = if region == LOCAL_REGION {
                format!(
                    "{LOCAL_REGION:?} is reserved for data that stays on this box: use another name, such as \"lan\""
                )
            } else if !self.is_resident(&entry.region) {
                format!(
                    "{region:?} is not in egress.residency, the regions where data may be: {}",
                    list(&self.residency)
                )
            } else {
                continue;
            };
            problems.push(ValueProblem::new(format!("allow[{index}].region"), problem));
        }
        problems
    }

    /// True if data may be in a region.
    pub fn is_resident(&self, region: &RegionName) -> bool {
        self.residency.is_empty() || self.residency.contains(region)
    }

    /// The same for a region of the counters, where data that stays on this box has its own region.
    pub fn is_counted_resident(&self, region: &RegionName) -> bool {
        region.as_str() == LOCAL_REGION || self.is_resident(region)
    }

    /// The contents that `to` may get. The error names the setting that would allow the connection.
    ///
    /// An entry takes precedence over the rule that loopback needs none: a port of this box may be the end of a tunnel.
    pub fn grant(&self, to: &HostPort) -> Result<EgressGrant, String> {
        if let Some(entry) = self.allow.iter().find(|entry| entry.host == *to) {
            if !self.is_resident(&entry.region) {
                let (region, residency) = (entry.region.as_str(), list(&self.residency));
                return Err(format!(
                    "{to} is in {region:?}, which is not in egress.residency, the regions where data may be: \
                     {residency}"
                ));
            }
            return Ok(EgressGrant { region: entry.region.as_str().to_owned(), send: entry.send.clone() });
        }
        if to.host.is_loopback() {
            return Ok(EgressGrant { region: LOCAL_REGION.to_owned(), send: everything_unnamed() });
        }
        let regions = match self.residency.as_slice() {
            [] => "a word for where it is, such as eu or lan".to_owned(),
            [only] => only.to_string(),
            several => format!("one of {}", list(several)),
        };
        Err(format!(
            "{to} is not in the allow-list; if data may go there, add the three lines `[[egress.allow]]`, \
             `host = \"{to}\"` and `region = \"REGION\"`, with {regions} for REGION"
        ))
    }
}

fn list(regions: &[RegionName]) -> String {
    regions.iter().map(RegionName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;

    fn config(text: &str) -> EgressConfig {
        toml_check::parse("f", text).unwrap()
    }

    fn grant(config: &EgressConfig, to: &str) -> Result<EgressGrant, String> {
        config.grant(&to.parse().unwrap())
    }

    #[test]
    fn an_entry_permits_its_host_and_port_and_nothing_beside() {
        let config = config("[[allow]]\nhost = 'Broker.example:8883'\nregion = 'eu'\nsend = ['presence']");
        let granted = grant(&config, "broker.EXAMPLE:8883").unwrap();
        assert_eq!(granted.region, "eu");
        let permitted = EgressContent::ALL.map(|content| granted.permits(content));
        assert_eq!(permitted, [true, false, true, false, false, false, false, false, false, false, false, false]);
        for other in ["broker.example:1883", "a.broker.example:8883", "example:8883", "10.0.0.1:8883"] {
            assert!(grant(&config, other).is_err(), "{other}");
        }
    }

    #[test]
    fn an_entry_without_send_permits_everything_but_what_must_be_named_and_an_empty_one_the_protocol_alone() {
        let config =
            config("[[allow]]\nhost = 'a:1'\nregion = 'eu'\n[[allow]]\nhost = 'b:1'\nregion = 'eu'\nsend = []");
        let permitted = |to: &str| EgressContent::ALL.map(|content| grant(&config, to).unwrap().permits(content));
        assert_eq!(permitted("a:1"), EgressContent::ALL.map(|content| !content.is_named_only()));
        assert_eq!(permitted("b:1"), EgressContent::ALL.map(|content| content == EgressContent::Protocol));
    }

    #[test]
    fn this_box_needs_no_entry_but_may_have_one() {
        let config = config("residency = ['eu']\n[[allow]]\nhost = '127.0.0.1:8883'\nregion = 'eu'\nsend = []");
        for local in ["127.0.0.1:1883", "127.1.2.3:8883", "[::1]:1", "localhost:1"] {
            let granted = grant(&config, local).unwrap();
            assert!(granted.region == LOCAL_REGION && granted.permits(EgressContent::Answer), "{local}");
            assert!(!granted.permits(EgressContent::Document), "{local}");
        }
        let tunnel = grant(&config, "127.0.0.1:8883").unwrap();
        assert!(tunnel.region == "eu" && !tunnel.permits(EgressContent::Answer));
    }

    #[test]
    fn an_entry_outside_the_residency_is_refused_even_where_nobody_looked_at_the_configuration() {
        let config = config(
            "residency = ['eu']\n[[allow]]\nhost = 'a:1'\nregion = 'eu'\n[[allow]]\nhost = 'b:1'\nregion = 'us'",
        );
        assert!(grant(&config, "a:1").is_ok());
        let refused = grant(&config, "b:1").unwrap_err();
        assert_eq!(refused, "b:1 is in \"us\", which is not in egress.residency, the regions where data may be: eu");
    }

    #[test]
    fn a_refusal_says_which_lines_to_add() {
        let refused = |text: &str| grant(&config(text), "[2001:db8::1]:1883").unwrap_err();
        let lines = "[2001:db8::1]:1883 is not in the allow-list; if data may go there, add the three lines \
                     `[[egress.allow]]`, `host = \"[2001:db8::1]:1883\"` and `region = \"REGION\"`, with ";
        let ends = [
            ("", "a word for where it is, such as eu or lan for REGION"),
            ("residency = ['eu']", "eu for REGION"),
            ("residency = ['eu', 'ch']", "one of eu, ch for REGION"),
        ];
        for (text, end) in ends {
            assert_eq!(refused(text), format!("{lines}{end}"));
        }
        // They do.
        let added = "[[egress.allow]]\nhost = \"[2001:db8::1]:1883\"\nregion = \"lan\"".replace("egress.", "");
        assert!(grant(&config(&added), "[2001:db8::1]:1883").is_ok());
    }

    #[test]
    fn what_does_not_fit_together_is_told_by_its_key() {
        let config = config(
            "residency = ['eu']\n[[allow]]\nhost = 'a:1'\nregion = 'eu'\n[[allow]]\nhost = 'A:1'\nregion = 'us'\n\
             [[allow]]\nhost = 'a:2'\nregion = 'local'",
        );
        let expected = [
            ("allow[1].host", "a:1 is named twice"),
            ("allow[1].region", "\"us\" is not in egress.residency, the regions where data may be: eu"),
            (
                "allow[2].region",
                "\"local\" is reserved for data that stays on this box: use another name, such as \"lan\"",
            ),
        ];
        let problems = config.problems();
        let found: Vec<_> = problems.iter().map(|problem| (problem.key.as_str(), problem.message.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mistake_in_an_entry_has_its_line_and_key() {
        let text = "residency = ['eu', 'a b']\n[[allow]]\nhost = 'broker'\nregion = ''\n[[allow]]\nhost = 'b:1'\n\
                    [[allow]]\nhosts = 'c:1'\nhost = 'c:1'\nregion = 'eu'\nsend = ['answers', 'protocol']\n";
        let found: Vec<_> =
            toml_check::parse::<EgressConfig>("f", text).unwrap_err().iter().map(ToString::to_string).collect();
        let expected = [
            "f:1: residency[1]: region \"a b\" has a character outside A-Z a-z 0-9 . _ -",
            "f:3: allow[0].host: expected \"HOST:PORT\" with a name, an IPv4 address or an IPv6 address in brackets, and without an '@'",
            "f:4: allow[0].region: region \"\" is empty",
            "f:5: allow[1]: `region` is missing",
            "f:8: allow[2].hosts: unknown field `hosts`, expected one of `host`, `region`, `send`",
            "f:11: allow[2].send[1]: unknown value `protocol`, expected one of `answers`, `presence`, `reports`, `calls`, `requests`, `audit`, `pictures`, `alerts`, `documents`, `certificates`, `diagnoses`",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_written_is_what_the_metrics_say() {
        let entry = AllowedDestination {
            host: "a:1".parse().unwrap(),
            region: "eu".parse().unwrap(),
            send: everything_unnamed(),
        };
        let written = toml::to_string(&entry).unwrap();
        assert_eq!(
            written,
            "host = \"a:1\"\nregion = \"eu\"\nsend = [\"answers\", \"presence\", \"reports\", \"calls\", \"requests\", \"audit\", \"pictures\", \"alerts\", \"certificates\"]\n"
        );
        assert_eq!(
            entry.send.iter().map(|content| content.name()).collect::<Vec<_>>(),
            ["answers", "presence", "reports", "calls", "requests", "audit", "pictures", "alerts", "certificates"]
        );
    }
}
