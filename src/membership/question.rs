//! A question of the platform: a signed file, verified before the box answers it.

use std::time::Duration;

use ledge_base::clock;
use ledge_base::names::DeviceName;
use serde::{Deserialize, Serialize};

use crate::certificates::CertificateChain;
use crate::envelope::{Envelope, signed_bytes};
use crate::join_file::PLATFORM_NAME;

/// The payload type of questions.
const QUESTION_TYPE: &str = "application/vnd.ledge.question+json";

/// The version of the payload.
const VERSION: u32 = 1;

/// The largest file of a question, in bytes: most of it are the certificate of the platform and its issuer.
pub const QUESTION_BYTES_MAX: usize = 16 << 10;

/// The longest validity of a question.
const LIFE_MAX: Duration = Duration::from_hours(1);

/// How far the clock of the platform may be ahead of this box's.
const AHEAD_MAX: Duration = Duration::from_mins(5);

/// A question that this version can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// The findings of `ledge doctor`, by their names.
    Doctor,
}

impl QuestionKind {
    const ALL: [Self; 1] = [Self::Doctor];

    /// The name in the configuration, on the platform and in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Doctor => "doctor",
        }
    }
}

/// A question that is to be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The random id that the platform gave it.
    pub id: String,
    pub kind: QuestionKind,
    /// In milliseconds since the Unix epoch.
    pub made_ms: u64,
}

/// The question that was answered last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnsweredQuestion {
    pub id: String,
    /// The time at which it was made, in milliseconds since the Unix epoch. Only a later one is answered.
    pub made_ms: u64,
    /// The time of the answer.
    pub answered_ms: u64,
}

/// The reason why a question is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuestionRefusal {
    #[error("it is no question that this version can read")]
    Unreadable,
    #[error("it is not signed by the platform of this box")]
    NotSigned,
    #[error("it is for another box")]
    OtherBox,
    #[error("it has expired")]
    Expired,
    #[error("it was made in the future: compare the clocks of the platform and of this box")]
    Early,
    #[error("it is the question that was answered last")]
    Answered,
    #[error("it is not later than the question that was answered last")]
    Repeated,
    #[error("this version does not know it")]
    Unknown,
    #[error("membership.questions does not allow it")]
    NotAllowed,
}

impl QuestionRefusal {
    /// The word in the audit log.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::NotSigned => "not_signed",
            Self::OtherBox => "other_box",
            Self::Expired => "expired",
            Self::Early => "early",
            Self::Answered | Self::Repeated => "repeated",
            Self::Unknown => "unknown",
            Self::NotAllowed => "not_allowed",
        }
    }
}

/// The payload of a question.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuestionPayload {
    version: u32,
    #[serde(rename = "box")]
    device: String,
    question: String,
    id: String,
    made: String,
    expires: String,
}

/// The side that a question is for.
#[derive(Debug)]
pub struct QuestionJudge<'a> {
    pub device: &'a DeviceName,
    /// The root certificate of the platform, in PEM.
    pub ca: &'a str,
    pub allowed: &'a [QuestionKind],
    pub answered: Option<&'a AnsweredQuestion>,
}

impl QuestionJudge<'_> {
    /// Reads and verifies the file of a question at `now_ms`, in milliseconds since the Unix epoch. Nothing of it is read
    /// as a payload before its signature is verified.
    pub fn judge(&self, bytes: &[u8], now_ms: u64) -> Result<Question, QuestionRefusal> {
        if bytes.len() > QUESTION_BYTES_MAX {
            return Err(QuestionRefusal::Unreadable);
        }
        let envelope = Envelope::read(bytes).filter(|it| it.payload_type == QUESTION_TYPE);
        let envelope = envelope.ok_or(QuestionRefusal::Unreadable)?;
        let payload = envelope.payload().ok_or(QuestionRefusal::Unreadable)?;
        let [signature] = envelope.signatures.as_slice() else { return Err(QuestionRefusal::Unreadable) };

        let chain = signature.certificate.as_deref().unwrap_or_default();
        let signed = signed_bytes(QUESTION_TYPE, &payload);
        let verified = CertificateChain::from_pem(chain.as_bytes()).and_then(|chain| {
            chain.verify(self.ca, now_ms)?;
            chain.is_for(PLATFORM_NAME)?;
            chain.verify_signature(&signed, &signature.bytes().unwrap_or_default())
        });
        verified.map_err(|_| QuestionRefusal::NotSigned)?;

        let payload: QuestionPayload = serde_json::from_slice(&payload).map_err(|_| QuestionRefusal::Unreadable)?;
        let made_ms = millis(&payload.made).ok_or(QuestionRefusal::Unreadable)?;
        let expires_ms = millis(&payload.expires).ok_or(QuestionRefusal::Unreadable)?;
        if payload.version != VERSION || !is_question_id(&payload.id) {
            return Err(QuestionRefusal::Unreadable);
        }
        self.decide(&payload, made_ms, expires_ms, now_ms)
    }

    fn decide(
        &self,
        payload: &QuestionPayload,
        made_ms: u64,
        expires_ms: u64,
        now_ms: u64,
    ) -> Result<Question, QuestionRefusal> {
        if payload.device != self.device.as_str() {
            return Err(QuestionRefusal::OtherBox);
        }
        if made_ms > now_ms.saturating_add(duration_ms(AHEAD_MAX)) {
            return Err(QuestionRefusal::Early);
        }
        // The platform cannot make a question that stays good for longer.
        if now_ms >= expires_ms.min(made_ms.saturating_add(duration_ms(LIFE_MAX))) {
            return Err(QuestionRefusal::Expired);
        }
        // Expiry alone would not do: a clock that is set back makes an old question good again.
        match self.answered {
            Some(last) if payload.id == last.id => return Err(QuestionRefusal::Answered),
            Some(last) if made_ms <= last.made_ms => return Err(QuestionRefusal::Repeated),
            _ => {}
        }
        let kind = QuestionKind::ALL.into_iter().find(|kind| kind.name() == payload.question);
        let kind = kind.ok_or(QuestionRefusal::Unknown)?;
        if !self.allowed.contains(&kind) {
            return Err(QuestionRefusal::NotAllowed);
        }
        Ok(Question { id: payload.id.clone(), kind, made_ms })
    }
}

/// True for the id of a question, which is a part of the path of its answer: 64 lower-case hexadecimal digits.
fn is_question_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn millis(moment: &str) -> Option<u64> {
    u64::try_from(clock::parse_micros(moment)?).ok().map(|micros| micros / 1000)
}

fn duration_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
