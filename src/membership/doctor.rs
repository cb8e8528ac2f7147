//! The findings about the membership.

use ledge_base::clock;
use ledge_egress::{EgressConfig, EgressContent};
use ledge_part::check::{Finding, FindingMeasure};

use crate::certificates::renewal_ms;
use crate::config::MembershipConfig;
use crate::folder::{Membership, MembershipFolder, Standing};

/// The name of the findings.
const NAME: &str = "membership";

/// Checks the certificate of this box; no findings on a box that joined no platform.
pub fn checks(config: &MembershipConfig, egress: &EgressConfig) -> Vec<Finding> {
    let folder = match config.folder() {
        Ok(folder) => folder,
        Err(error) => {
            return vec![Finding::fail(NAME, error.to_string(), "correct membership.key_file, or join again")];
        }
    };
    match folder.membership() {
        Ok(None) => Vec::new(),
        Ok(Some(membership)) => {
            let mut findings = vec![standing(&folder, &membership)];
            findings.extend(questions(config, egress, &membership));
            findings
        }
        Err(error) => {
            vec![Finding::fail(NAME, error.to_string(), "run it as root, or join again with a new join file")]
        }
    }
}

/// Checks that the answers to the questions that the owner allows may leave this box.
fn questions(
    config: &MembershipConfig,
    egress: &EgressConfig,
    Membership { join, .. }: &Membership,
) -> Option<Finding> {
    let is_permitted = || egress.grant(&join.at).is_ok_and(|grant| grant.permits(EgressContent::Diagnosis));
    if config.questions.is_empty() || is_permitted() {
        return None;
    }
    let detail =
        format!("membership.questions is set, and the entry of egress.allow for {} lacks \"diagnoses\"", join.at);
    Some(Finding::warn(NAME, detail, "add it to `send` of that entry, or remove the entry: joining made one"))
}

fn standing(folder: &MembershipFolder, membership: &Membership) -> Finding {
    let Membership { platform, device, standing, .. } = membership;
    let said = folder.status().map(|status| format!(": {}", status.said)).unwrap_or_default();
    match standing {
        Standing::Joining { .. } => Finding::warn(
            NAME,
            format!("{device} is not a member of {platform} yet{said}"),
            "see that the service runs and reaches the platform; there, `ledge-platform box list` shows the request",
        ),
        Standing::Refused { reason } => Finding::fail(
            NAME,
            format!("{platform} refused {device}: {reason}"),
            "ask the platform for a new join file, then `ledge join --replace FILE`",
        ),
        Standing::Member { .. } => certificate(folder, membership, &said),
    }
}

fn certificate(folder: &MembershipFolder, Membership { platform, device, .. }: &Membership, said: &str) -> Finding {
    let Some(facts) = folder.certificate_facts() else {
        let detail = format!("the certificate of {device} cannot be read");
        return Finding::fail(NAME, detail, "run it as root, or join again with a new join file");
    };
    let (now_ms, until) = (clock::unix_millis(), clock::rfc3339(facts.not_after_ms));
    let left = FindingMeasure::SecondsLeft(facts.not_after_ms.saturating_sub(now_ms) / 1000);
    let detail = format!("{device} is a member of {platform}, with a certificate until {until}");
    if facts.not_after_ms <= now_ms {
        return Finding::fail(
            NAME,
            format!("the certificate of {device} ended at {until}{said}"),
            "see that the service reaches the platform: it renews the certificate by itself, up to a year later",
        )
        .measured(left);
    }
    if renewal_ms(&facts) + 86_400_000 < now_ms {
        return Finding::warn(
            NAME,
            format!("{detail}, which is due for renewal{said}"),
            "see that the service reaches the platform",
        )
        .measured(left);
    }
    Finding::ok(NAME, detail).measured(left)
}
