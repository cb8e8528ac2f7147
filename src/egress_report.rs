//! Every kind of message that this box can send, its destinations, and the bytes sent so far: for `ledge audit egress`
//! and `GET /egress`.
//!
//! The list is made from the types of the code: a kind of message without a description does not compile, and the
//! fields come from the types that are sent.

mod contents;
mod fields;

use std::collections::BTreeMap;

use ledge_audit::config::AuditConfig;
use ledge_audit::live::LiveCopy;
use ledge_egress::{DestinationCounts, EgressConfig, EgressContent, EgressCounts, EgressPurpose};
use serde::Serialize;

use crate::config::Config;
use contents::EgressMessageForm;

/// The contents that can leave this box, with the bytes that did.
#[derive(Debug, Serialize)]
pub struct EgressReport {
    contents: Vec<EgressContentReport>,
    /// The regions where data may be; if empty, any region of an entry of the configuration.
    residency: Vec<String>,
    /// The destinations that the configuration allows, and earlier ones with counts.
    destinations: Vec<DestinationReport>,
    /// The start of the counts; `None` before the first start.
    counted_since: Option<String>,
    /// Set when earlier counts were lost.
    counts_were_damaged: bool,
    /// The reason why the counts cannot be read; the report still lists what may be sent.
    pub error: Option<String>,
    /// The listeners. Answers to callers that connect to this box are neither egress nor in the counts.
    listens_on: Vec<String>,
}

/// One kind of content.
#[derive(Debug, Serialize)]
struct EgressContentReport {
    content: &'static str,
    what: &'static str,
    /// The purposes of the connections that carry it.
    purposes: Vec<&'static str>,
    messages: Vec<EgressMessageForm>,
}

/// One destination.
#[derive(Debug, Serialize)]
struct DestinationReport {
    destination: String,
    region: String,
    /// True if data may be in that region.
    is_resident: bool,
    /// The contents that it may receive; `None` if the configuration no longer allows it.
    allowed: Option<Vec<&'static str>>,
    connections: u64,
    failures: u64,
    /// Bytes sent, by content.
    sent: BTreeMap<String, u64>,
    received: u64,
}

impl EgressReport {
    /// Reads the counts of the box with this configuration.
    pub fn read(config: &Config) -> Self {
        match EgressCounts::read(&config.state.path) {
            Ok(counts) => Self::new(config, counts),
            Err(error) => Self { error: Some(error.to_string()), ..Self::new(config, None) },
        }
    }

    fn new(config: &Config, counts: Option<EgressCounts>) -> Self {
        let since = counts.as_ref().map(|counts| counts.since.clone());
        let counts_were_damaged = counts.as_ref().is_some_and(|counts| counts.after_damage);
        Self {
            contents: EgressContent::ALL.map(EgressContentReport::of).into(),
            residency: config.egress.residency.iter().map(ToString::to_string).collect(),
            destinations: destinations(&config.egress, counts.map(|counts| counts.destinations).unwrap_or_default()),
            counted_since: since,
            counts_were_damaged,
            error: None,
            listens_on: config.http.listen.iter().map(ToString::to_string).collect(),
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut lines = vec!["This box can send the following, and nothing else:".to_owned()];
        for kind in &self.contents {
            lines.push(format!("\n{}: {}", kind.content, kind.what));
            lines.push(format!("  over connections for: {}", kind.purposes.join(", ")));
            for message in &kind.messages {
                lines.push(format!("  {}", message.name));
                lines.extend(message.fields.iter().map(|field| {
                    let what = if field.what.is_empty() { String::new() } else { format!("  {}", field.what) };
                    format!("    {}{what}", field.name)
                }));
            }
        }

        lines.push(match self.residency.as_slice() {
            [] => "\nDestinations (egress.residency is empty: any region of an entry of egress.allow):".to_owned(),
            regions => format!("\nDestinations (data may be in {}):", regions.join(", ")),
        });
        if self.destinations.is_empty() {
            lines.push("  none: the configuration allows no destination".to_owned());
        }
        for of in &self.destinations {
            let allowed = match &of.allowed {
                None => "no longer allowed".to_owned(),
                Some(contents) => format!("may receive {}", contents.join(", ")),
            };
            let outside = if of.is_resident { "" } else { ", outside the residency" };
            lines.push(format!("  {} in {}{outside}: {allowed}", of.destination, of.region));
            let sent: Vec<_> = of.sent.iter().filter(|(_, bytes)| **bytes > 0).collect();
            let sent: Vec<_> = sent.into_iter().map(|(content, bytes)| format!("{bytes} bytes of {content}")).collect();
            let sent = if sent.is_empty() { "nothing sent".to_owned() } else { format!("sent {}", sent.join(", ")) };
            let (connections, failures, received) = (of.connections, of.failures, of.received);
            lines.push(format!("    {connections} connections, {failures} failed; {sent}; received {received} bytes"));
        }

        lines.push(match &self.counted_since {
            None => "  Nothing is counted yet: the counts begin with the first start of the server.".to_owned(),
            Some(since) if self.counts_were_damaged => {
                format!("  Counted since {since}. Earlier counts are lost, because their file was damaged.")
            }
            Some(since) => {
                format!("  Counted since {since}, across restarts. A kill loses the counts of the last ten seconds.")
            }
        });
        let listens = self.listens_on.join(", ");
        lines.push(format!(
            "\nBesides that, this box answers callers that connect to it ({listens}). http.listen and the network \
             decide who can connect. Answers are not in these counts, but in the audit log, per call or per minute."
        ));
        lines.join("\n") + "\n"
    }
}

impl EgressContentReport {
    fn of(content: EgressContent) -> Self {
        let audit = AuditConfig::default();
        let live_copies = audit.live_copies().into_iter().map(LiveCopy::name);
        let purposes =
            EgressPurpose::all(live_copies).into_iter().filter(|purpose| purpose.contents().contains(&content));
        Self {
            content: content.name(),
            what: contents::what(content),
            purposes: purposes.map(EgressPurpose::name).collect(),
            messages: contents::messages(content),
        }
    }
}

/// The allowed destinations with their counts, then those that only have counts.
fn destinations(config: &EgressConfig, counts: Vec<DestinationCounts>) -> Vec<DestinationReport> {
    let with = |counts: DestinationCounts, allowed| {
        let DestinationCounts { destination, region, connections, failures, sent, received } = counts;
        let is_resident = region.parse().is_ok_and(|region| config.is_counted_resident(&region));
        DestinationReport { destination, region, is_resident, allowed, connections, failures, sent, received }
    };
    let mut remaining = counts;
    let mut found = Vec::new();
    for entry in &config.allow {
        let (destination, region) = (entry.host.to_string(), entry.region.to_string());
        let known = remaining.iter().position(|of| of.destination == destination && of.region == region);
        let counts = match known {
            Some(at) => remaining.swap_remove(at),
            None => DestinationCounts { destination, region, ..DestinationCounts::default() },
        };
        let permitted = config.grant(&entry.host).ok();
        let permitted = |content: &EgressContent| permitted.as_ref().is_some_and(|grant| grant.permits(*content));
        let contents = EgressContent::ALL.into_iter().filter(permitted).map(EgressContent::name).collect();
        found.push(with(counts, Some(contents)));
    }

    for counts in remaining {
        // A destination on this box needs no entry.
        let grant = counts.destination.parse().ok().and_then(|host| config.grant(&host).ok());
        let grant = grant.filter(|grant| grant.region == counts.region);
        let contents = |grant: ledge_egress::EgressGrant| {
            EgressContent::ALL.into_iter().filter(|content| grant.permits(*content)).map(EgressContent::name).collect()
        };
        found.push(with(counts, grant.map(contents)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;
    use ledge_egress::everything_unnamed;

    #[test]
    fn destinations_that_are_no_longer_allowed_are_marked() {
        let text =
            "[[allow]]\nhost = 'a:1'\nregion = 'eu'\nsend = ['presence']\n[[allow]]\nhost = 'b:1'\nregion = 'eu'";
        let config: EgressConfig = toml_check::parse("f", text).unwrap();
        let counts = |destination: &str, region: &str| DestinationCounts {
            destination: destination.into(),
            region: region.into(),
            connections: 3,
            sent: [("answers".to_owned(), 7)].into(),
            ..DestinationCounts::default()
        };
        let past = vec![counts("a:1", "us"), counts("b:1", "eu"), counts("c:1", "eu"), counts("127.0.0.1:5", "local")];
        let found = destinations(&config, past);
        let listed: Vec<_> = found
            .iter()
            .map(|of| (of.destination.as_str(), of.region.as_str(), of.allowed.as_ref().map(Vec::len), of.connections))
            .collect();
        // And the protocol, which is always allowed.
        let everything = Some(everything_unnamed().len() + 1);
        let mut expected = vec![
            ("a:1", "eu", Some(2), 0),
            ("b:1", "eu", everything, 3),
            ("127.0.0.1:5", "local", everything, 3),
            ("a:1", "us", None, 3),
            ("c:1", "eu", None, 3),
        ];
        expected.sort_unstable();
        let mut listed = listed;
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn each_kind_of_message_has_fields_and_a_connection_that_carries_it() {
        let report = EgressReport::new(&Config::with_root(std::path::Path::new("/nowhere")), None);
        for kind in &report.contents {
            assert!(!kind.purposes.is_empty() && !kind.messages.is_empty(), "{}", kind.content);
            assert!(kind.messages.iter().all(|message| !message.fields.is_empty()), "{}", kind.content);
        }
        let text = report.text();
        for field in
            ["event(model_loaded).digest", "models[].versions[].digest", "features.*.values[]", "if-none-match"]
        {
            assert!(text.contains(field), "{field}:\n{text}");
        }
    }
}
