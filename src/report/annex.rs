//! Annexes of a report: duties of a law, with what this box does for each, the evidence, and what remains with the owner.
//! Their content is data, in `annexes/`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::document::ActionCount;

/// The annexes, in the order of a report.
const SOURCES: &[&str] = &[include_str!("annexes/uae-45-2021.toml"), include_str!("annexes/gdpr.toml")];

/// An annex, as its file has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Annex {
    name: String,
    title: String,
    law: String,
    note: String,
    duty: Vec<Duty>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Duty {
    article: String,
    /// The duty itself.
    #[serde(rename = "duty")]
    text: String,
    /// The fact about this box.
    fact: String,
    /// The actions of the records that are evidence.
    #[serde(default)]
    actions: Vec<String>,
    /// The settings that are evidence, by key.
    #[serde(default)]
    settings: Vec<String>,
    /// True if the verified head of the log is evidence.
    #[serde(default)]
    head: bool,
    /// The part that remains with the owner of the box.
    owner: String,
}

/// An annex with the evidence of a month.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AnnexReport {
    pub name: String,
    pub title: String,
    pub law: String,
    pub note: String,
    pub duties: Vec<DutyReport>,
}

/// A duty with the evidence of a month.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DutyReport {
    pub article: String,
    pub duty: String,
    pub fact: String,
    /// The records of the month, by action; those without records have the number 0.
    pub records: Vec<DutyRecords>,
    pub settings: BTreeMap<String, Value>,
    /// True if the verified heads of the logs are evidence.
    pub log_head: bool,
    pub owner: String,
}

/// The records of one action, which are evidence for a duty.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DutyRecords {
    pub action: String,
    #[serde(flatten)]
    pub found: Option<ActionCount>,
}

/// The annexes as they are compiled in.
fn annexes() -> Vec<Annex> {
    // A test reads every one of them.
    SOURCES.iter().filter_map(|source| toml::from_str(source).ok()).collect()
}

/// The keys of the settings that annexes show.
pub fn settings() -> BTreeSet<String> {
    annexes().into_iter().flat_map(|annex| annex.duty).flat_map(|duty| duty.settings).collect()
}

/// The annexes with the records and settings of a report.
pub fn with_evidence(records: &[ActionCount], settings: &BTreeMap<String, Value>) -> Vec<AnnexReport> {
    let of_action = |action: String| {
        let found = records.iter().find(|count| count.action == action).cloned();
        DutyRecords { action, found }
    };
    let of_duty = |duty: Duty| DutyReport {
        records: duty.actions.into_iter().map(of_action).collect(),
        settings: duty
            .settings
            .into_iter()
            .map(|key| (key.clone(), settings.get(&key).cloned().unwrap_or_default()))
            .collect(),
        log_head: duty.head,
        article: duty.article,
        duty: duty.text,
        fact: duty.fact,
        owner: duty.owner,
    };
    let of_annex = |Annex { name, title, law, note, duty }: Annex| AnnexReport {
        name,
        title,
        law,
        note: note.trim().to_owned(),
        duties: duty.into_iter().map(of_duty).collect(),
    };
    annexes().into_iter().map(of_annex).collect()
}

#[cfg(test)]
mod tests {
    use ledge_service::audit_event::AuditEvent;

    use super::*;

    #[test]
    fn every_annex_is_read_and_names_only_actions_that_exist() {
        for source in SOURCES {
            let annex: Annex = toml::from_str(source).unwrap();
            for duty in &annex.duty {
                for action in &duty.actions {
                    assert!(AuditEvent::ACTIONS.contains(&action.as_str()), "{}: {action}", duty.article);
                }
                let texts = [&duty.article, &duty.text, &duty.fact, &duty.owner];
                assert!(texts.iter().all(|text| !text.is_empty() && !text.contains('\n')), "{}", duty.article);
            }
        }
        assert_eq!(annexes().len(), SOURCES.len());
    }

    #[test]
    fn no_annex_claims_compliance() {
        for source in SOURCES {
            let text = source.to_lowercase();
            for claim in ["compliant", "complies", "compliance", "certified", "guarantee"] {
                assert!(!text.contains(claim), "{claim}");
            }
        }
    }

    #[test]
    fn the_annexes_have_the_articles_that_they_are_about() {
        let articles = |name: &str| {
            let annex = annexes().into_iter().find(|annex| annex.name == name).unwrap();
            annex.duty.iter().map(|duty| duty.article.clone()).collect::<Vec<_>>().join("; ")
        };
        let (uae, gdpr) = (articles("uae-45-2021"), articles("gdpr"));
        for article in
            ["Article 5", "Article 7", "Article 8", "Article 9", "Article 13", "Article 15", "Article 20", "22 and 23"]
        {
            assert!(uae.contains(article), "{article}: {uae}");
        }
        for article in ["Article 5(1)(e)", "Article 5(2)", "Article 17(1)", "Article 30(1)", "Article 32(1)(d)"] {
            assert!(gdpr.contains(article), "{article}: {gdpr}");
        }
    }

    #[test]
    fn a_duty_without_records_says_so() {
        let annexes = with_evidence(&[], &BTreeMap::new());
        assert!(
            annexes.iter().flat_map(|annex| &annex.duties).flat_map(|duty| &duty.records).all(|of| of.found.is_none())
        );
    }
}
