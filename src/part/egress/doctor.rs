//! Where data may go: the regions of the residency, and the destinations that are allowed.

use std::collections::BTreeSet;

use ledge_base::names::RegionName;
use ledge_egress::{DestinationCounts, EgressConfig};

use crate::check::Check;

/// Whether what may leave this box is bound to regions, and whether what left it before was in them. `counts` is what was
/// counted so far.
pub fn check(config: &EgressConfig, counts: &[DestinationCounts]) -> Check {
    let name = "egress";
    let elsewhere = config.allow.iter().filter(|entry| !entry.host.host.is_loopback()).count();
    let regions: BTreeSet<&str> = config.allow.iter().map(|entry| entry.region.as_str()).collect();
    let regions = regions.into_iter().collect::<Vec<_>>().join(", ");
    let residency = config.residency.iter().map(RegionName::as_str).collect::<Vec<_>>().join(", ");
    let outside: Vec<_> = counts
        .iter()
        .filter(|of| of.connections > 0 && of.region.parse().is_ok_and(|region| !config.is_counted_resident(&region)))
        .map(|of| format!("{} in {}", of.destination, of.region))
        .collect();
    let detail = match (config.allow.len(), config.residency.is_empty()) {
        (0, _) => "nothing may leave this box".to_owned(),
        (1, true) => format!("1 destination, in {regions}; no residency is set"),
        (count, true) => format!("{count} destinations, in {regions}; no residency is set"),
        (1, false) => format!("1 destination, in {regions}; data may be in {residency}"),
        (count, false) => format!("{count} destinations, in {regions}; data may be in {residency}"),
    };
    if !outside.is_empty() {
        let advice = "nothing goes there any more; `ledge audit egress` says what did";
        return Check::warn(name, format!("{detail}\nbefore, data went to {}", outside.join(", ")), advice);
    }
    if config.residency.is_empty() && elsewhere > 0 {
        let advice =
            "list the regions where data may be in egress.residency: an entry of another one is then a mistake";
        return Check::warn(name, detail, advice);
    }
    Check::ok(name, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;
    use ledge_base::toml_check;

    fn look(text: &str, went_to: &[(&str, &str)]) -> (Status, String) {
        let config: EgressConfig = toml_check::parse("f", text).unwrap();
        let destinations = went_to.iter().map(|(destination, region)| DestinationCounts {
            destination: (*destination).into(),
            region: (*region).into(),
            connections: 1,
            ..DestinationCounts::default()
        });
        let check = check(&config, &destinations.collect::<Vec<_>>());
        (check.status, check.detail)
    }

    #[test]
    fn a_destination_without_a_residency_deserves_a_word() {
        let entry = "[[allow]]\nhost = 'b.example:1'\nregion = 'eu'";
        let local = "[[allow]]\nhost = '127.0.0.1:1'\nregion = 'eu'";
        for (text, status, detail) in [
            ("", Status::Ok, "nothing may leave this box"),
            (entry, Status::Warn, "1 destination, in eu; no residency is set"),
            (local, Status::Ok, "1 destination, in eu; no residency is set"),
            (&format!("residency = ['eu', 'ch']\n{entry}"), Status::Ok, "1 destination, in eu; data may be in eu, ch"),
        ] {
            assert_eq!(look(text, &[("127.0.0.1:9", "local")]), (status, detail.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_went_outside_the_residency_before_it_was_set_is_told() {
        let (status, detail) = look("residency = ['eu']", &[("a.example:1", "us"), ("b.example:1", "eu")]);
        assert_eq!(status, Status::Warn);
        assert!(detail.ends_with("before, data went to a.example:1 in us"), "{detail}");
    }
}
