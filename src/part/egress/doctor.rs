//! The finding about data that leaves this box: the allowed destinations, and the regions of the residency.

use std::collections::BTreeSet;

use ledge_base::names::RegionName;
use ledge_egress::{DestinationCounts, EgressConfig};

use crate::check::Finding;

/// Checks that the allowed destinations are restricted to regions, and that data sent before, by `counts`, went to
/// these regions.
pub fn check(config: &EgressConfig, counts: &[DestinationCounts]) -> Finding {
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
        let advice = "no data is sent there now; `ledge audit egress` lists what was sent";
        return Finding::warn(name, format!("{detail}\nearlier, data went to {}", outside.join(", ")), advice);
    }
    if config.residency.is_empty() && elsewhere > 0 {
        let advice = "set egress.residency to the regions where data may be; the configuration then refuses \
                      destinations in other regions";
        return Finding::warn(name, detail, advice);
    }
    Finding::ok(name, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::FindingStatus;
    use ledge_base::toml_check;

    fn look(text: &str, went_to: &[(&str, &str)]) -> (FindingStatus, String) {
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
    fn a_destination_without_a_residency_is_a_warning() {
        let entry = "[[allow]]\nhost = 'b.example:1'\nregion = 'eu'";
        let local = "[[allow]]\nhost = '127.0.0.1:1'\nregion = 'eu'";
        for (text, status, detail) in [
            ("", FindingStatus::Ok, "nothing may leave this box"),
            (entry, FindingStatus::Warn, "1 destination, in eu; no residency is set"),
            (local, FindingStatus::Ok, "1 destination, in eu; no residency is set"),
            (
                &format!("residency = ['eu', 'ch']\n{entry}"),
                FindingStatus::Ok,
                "1 destination, in eu; data may be in eu, ch",
            ),
        ] {
            assert_eq!(look(text, &[("127.0.0.1:9", "local")]), (status, detail.to_owned()), "{text}");
        }
    }

    #[test]
    fn data_sent_outside_the_residency_before_it_was_set_is_reported() {
        let (status, detail) = look("residency = ['eu']", &[("a.example:1", "us"), ("b.example:1", "eu")]);
        assert_eq!(status, FindingStatus::Warn);
        assert!(detail.ends_with("earlier, data went to a.example:1 in us"), "{detail}");
    }
}
