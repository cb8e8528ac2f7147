//! The task that keeps this box a member: it asks for the first certificate, and for the next one in time.
//!
//! A request is on the disk before it is sent, and is removed after its certificate is on the disk. A box that loses
//! its power in between asks again with the same key, and gets the same answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use ledge_base::clock;
use ledge_egress::{Egress, HttpAnswer, HttpClient, HttpError, UploadClient, client_certificate_refusal};
use ledge_service::audit_event::{AuditEvent, AuditSink};
use rcgen::{KeyPair, PublicKeyData as _};

use crate::certificates::{CertificateChain, CertificateError, private_key, renewal_ms};
use crate::folder::{FolderError, Membership, MembershipFolder, MembershipStatus, Standing};
use crate::join_file::JoinFileError;
use crate::request::{Answer, AnswerState, PendingRequest, RequestError, RequestSigner};

/// The longest answer, in bytes: two certificates and a root certificate have some 4 KiB.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The pause before the answer is asked for again: the platform decides once a minute.
const ANSWER_PAUSE: Duration = Duration::from_secs(15);

/// The pause while a person has to approve the request.
const APPROVAL_PAUSE: Duration = Duration::from_mins(1);

/// The pause after an attempt that failed: the first, and the longest.
const FAILURE_PAUSES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(10));

/// The longest pause. A clock that was set meanwhile counts from then.
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// The pause after a renewal that the platform refused. The present certificate stays.
const REFUSAL_PAUSE: Duration = Duration::from_hours(6);

/// The attempts to fetch an answer after which the request is sent again: the platform may have lost it.
const ASKED_IN_VAIN_MAX: u32 = 40;

/// The looks for the key of the audit log, a second apart, after which a request goes without it.
const AUDIT_KEY_LOOKS_MAX: u32 = 30;

/// Reads the key with which the audit log is verified, once it exists.
pub type AuditKeyReader = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// Keeps this box a member.
pub struct Member {
    folder: MembershipFolder,
    egress: Egress,
    audit: AuditSink,
    audit_key: AuditKeyReader,
    status: Arc<Mutex<MembershipStatus>>,
    /// Attempts to fetch the answer since the request was sent; `None` before it was.
    asked_in_vain: Option<u32>,
    failures: u32,
    audit_key_looks: u32,
}

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the join file cannot be used any more: {0}")]
    JoinFile(#[from] JoinFileError),
    #[error("the platform cannot be asked for a certificate: {0}")]
    Http(#[from] HttpError),
    #[error("the platform does not take the request (status {status}){hint}")]
    NotTaken { status: u16, hint: &'static str },
    #[error("the answer of the platform cannot be used: {0}")]
    Answer(String),
    #[error("the certificate that the platform issued cannot be used: {0}")]
    Issued(CertificateError),
    #[error("the certificate of this box cannot be read: {0}")]
    Own(CertificateError),
    #[error("the private key of this box cannot be read: {0}")]
    OwnKey(#[from] rcgen::Error),
}

/// The next thing to do.
enum NextStep {
    /// Nothing before this time, in milliseconds since the Unix epoch.
    Wait { until_ms: u64 },
    /// A request is not answered yet.
    Ask(PendingRequest),
    /// The platform refused this box for good.
    Nothing,
    /// The audit log, which was not begun yet, will have a key in a moment.
    Soon,
}

impl Member {
    /// The member whose membership is in `folder`. It keeps `status` at the result of its last attempt.
    pub fn new(
        folder: MembershipFolder,
        egress: Egress,
        audit: AuditSink,
        audit_key: AuditKeyReader,
        status: Arc<Mutex<MembershipStatus>>,
    ) -> Self {
        Self { folder, egress, audit, audit_key, status, asked_in_vain: None, failures: 0, audit_key_looks: 0 }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        loop {
            let pause = match self.step().await {
                Ok(pause) => {
                    self.failures = 0;
                    pause
                }
                Err(error) => {
                    self.say(true, error.to_string());
                    let (first, longest) = FAILURE_PAUSES;
                    let pause = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(longest);
                    self.failures = self.failures.saturating_add(1);
                    pause
                }
            };
            // Boxes that were switched on together ask at different times.
            tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * ledge_base::backoff::random())).await;
        }
    }

    /// Does one thing, and returns the pause before the next.
    async fn step(&mut self) -> Result<Duration, MemberError> {
        let Some(membership) = self.folder.membership()? else { return Ok(PAUSE_MAX) };
        match self.next(&membership)? {
            NextStep::Nothing => Ok(PAUSE_MAX),
            NextStep::Soon => {
                self.audit_key_looks += 1;
                Ok(Duration::from_secs(1))
            }
            NextStep::Wait { until_ms } => {
                Ok(Duration::from_millis(until_ms.saturating_sub(clock::FLOOR.now_millis())).min(PAUSE_MAX))
            }
            NextStep::Ask(pending) => self.ask(membership, pending).await,
        }
    }

    fn next(&self, membership: &Membership) -> Result<NextStep, MemberError> {
        if let Some(pending) = self.folder.pending()? {
            return Ok(NextStep::Ask(pending));
        }
        let now_ms = clock::FLOOR.now_millis();
        let audit_key = (self.audit_key)();
        let pending = match &membership.standing {
            Standing::Refused { .. } => return Ok(NextStep::Nothing),
            Standing::Joining { .. } if audit_key.is_none() && self.audit_key_looks < AUDIT_KEY_LOOKS_MAX => {
                return Ok(NextStep::Soon);
            }
            Standing::Joining { invitation, join_file } => {
                let key = invitation.secret_key()?;
                let signer = RequestSigner::Invited { key: &key, inbox: &invitation.inbox, join_file };
                PendingRequest::make(&membership.device, audit_key.as_deref(), &signer, now_ms)?
            }
            Standing::Member { .. } => {
                let identity = self.folder.identity()?.ok_or(MemberError::Own(CertificateError::None))?;
                let facts = CertificateChain::from_pem(&identity).and_then(|chain| chain.facts());
                let facts = facts.map_err(MemberError::Own)?;
                let renewal_ms = renewal_ms(&facts);
                if now_ms < renewal_ms {
                    return Ok(NextStep::Wait { until_ms: renewal_ms });
                }
                let key = private_key(&identity).map_err(MemberError::Own)?;
                let signer = RequestSigner::Member { key: &key, serial: &facts.serial };
                PendingRequest::make(&membership.device, audit_key.as_deref(), &signer, now_ms)?
            }
        };
        self.folder.save_pending(&pending)?;
        Ok(NextStep::Ask(pending))
    }

    /// Sends the request, unless the platform has it, and looks for the answer.
    async fn ask(&mut self, membership: Membership, pending: PendingRequest) -> Result<Duration, MemberError> {
        let client = self.client(&membership);
        // There may be an answer from before this box lost its power.
        if let Some(answer) = self.answer(&client, &membership, &pending).await? {
            return self.take(membership, &pending, answer);
        }
        match self.asked_in_vain {
            Some(times) if times < ASKED_IN_VAIN_MAX => self.asked_in_vain = Some(times + 1),
            _ => {
                self.send(&client, &membership, &pending).await?;
                self.say(false, format!("asked the platform {} for a certificate", membership.platform));
                self.asked_in_vain = Some(0);
            }
        }
        Ok(ANSWER_PAUSE)
    }

    fn client(&self, Membership { join, .. }: &Membership) -> UploadClient {
        HttpClient::for_certificates(self.egress.clone(), self.folder.connection(join))
    }

    async fn send(
        &self,
        client: &UploadClient,
        membership: &Membership,
        pending: &PendingRequest,
    ) -> Result<(), MemberError> {
        let inbox = match &membership.standing {
            Standing::Joining { invitation, .. } => &invitation.inbox,
            Standing::Member { inbox } => inbox,
            Standing::Refused { .. } => return Ok(()),
        };
        let path = format!("{}/requests/{inbox}/{}.json", membership.join.path.trim_end_matches('/'), pending.id);
        let body = serde_json::to_vec(&pending.envelope).map_err(RequestError::from)?;
        let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let HttpAnswer { status, body, .. } = client.put(&path, &json, Bytes::from(body)).await?;
        let hint = match (status, &membership.standing) {
            (200..=299, _) => return Ok(()),
            (404, Standing::Member { .. }) => {
                ": it does not know this box any more. If the box was not revoked, join again with a new join file"
            }
            (404, _) => {
                ": it does not know the join file, which was used up, replaced or has expired; ask for a new one"
            }
            (429, _) => ": too many requests at a time; the next attempt comes by itself",
            (400, _) => client_certificate_refusal(&body),
            _ => "",
        };
        Err(MemberError::NotTaken { status, hint })
    }

    /// The answer of the platform; `None` before there is one.
    async fn answer(
        &self,
        client: &UploadClient,
        membership: &Membership,
        pending: &PendingRequest,
    ) -> Result<Option<Answer>, MemberError> {
        let path = format!("{}/answers/{}.json", membership.join.path.trim_end_matches('/'), pending.id);
        let HttpAnswer { status, body, .. } = client.get(&path, ANSWER_BYTES_MAX).await?;
        match status {
            200 => serde_json::from_slice(&body).map(Some).map_err(|error| MemberError::Answer(error.to_string())),
            404 | 410 => Ok(None),
            400 => Err(MemberError::NotTaken { status, hint: client_certificate_refusal(&body) }),
            _ => Err(MemberError::NotTaken { status, hint: "" }),
        }
    }

    /// Does what the platform decided.
    fn take(
        &mut self,
        membership: Membership,
        pending: &PendingRequest,
        answer: Answer,
    ) -> Result<Duration, MemberError> {
        let reason = answer.reason.as_deref().map(printable);
        match answer.state {
            AnswerState::Issued => self.accept(membership, pending, &answer.certificate.unwrap_or_default()),
            AnswerState::Waiting => {
                // The next pause looks for the answer only.
                self.asked_in_vain = Some(0);
                let reason = reason.unwrap_or_else(|| "a person must approve it".to_owned());
                self.say(false, format!("the platform {} has the request: {reason}", membership.platform));
                Ok(APPROVAL_PAUSE)
            }
            AnswerState::Refused => {
                let reason = reason.unwrap_or_else(|| "without a reason".to_owned());
                let is_first = matches!(membership.standing, Standing::Joining { .. });
                if is_first {
                    let standing = Standing::Refused { reason: reason.clone() };
                    self.folder.save(&Membership { standing, ..membership.clone() })?;
                }
                self.folder.remove_pending()?;
                self.asked_in_vain = None;
                self.say(true, format!("the platform {} refused this box: {reason}", membership.platform));
                Ok(if is_first { PAUSE_MAX } else { REFUSAL_PAUSE })
            }
        }
    }

    fn accept(
        &mut self,
        membership: Membership,
        pending: &PendingRequest,
        certificate: &str,
    ) -> Result<Duration, MemberError> {
        let now_ms = clock::FLOOR.now_millis();
        let chain = CertificateChain::from_pem(certificate.as_bytes()).map_err(MemberError::Issued)?;
        let ca = std::fs::read_to_string(self.folder.ca_file())
            .map_err(|error| FolderError::File { path: self.folder.ca_file(), error })?;
        let key = KeyPair::from_pem(&pending.key)?;
        let facts = chain
            .verify(&ca, now_ms)
            .and_then(|()| chain.is_for(membership.device.as_str()))
            .and_then(|()| chain.facts())
            .map_err(MemberError::Issued)?;
        if !facts.has_public_key(&key.subject_public_key_info()) {
            return Err(MemberError::Issued(CertificateError::Key));
        }

        // The order matters: a certificate that is stored is complete, and the request stays until all is.
        self.folder.save_identity(certificate, &pending.key)?;
        let until = clock::rfc3339(facts.not_after_ms);
        let platform = membership.platform.clone();
        let standing = Standing::Member { inbox: pending.inbox.clone() };
        self.folder.save(&Membership { standing, ..membership })?;
        self.folder.remove_pending()?;
        self.asked_in_vain = None;

        self.audit.record_own(AuditEvent::CertificateIssued { serial: facts.serial.clone(), until: until.clone() });
        self.say(false, format!("member of {platform}, with a certificate until {until}"));
        Ok(Duration::from_millis(renewal_ms(&facts).saturating_sub(now_ms)).min(PAUSE_MAX))
    }

    /// Logs a result that is not the last one again, and stores it for people.
    fn say(&self, is_problem: bool, said: String) {
        let mut last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if last.said == said && last.is_problem == is_problem {
            return;
        }
        if is_problem {
            tracing::warn!("membership: {said}");
        } else {
            tracing::info!("membership: {said}");
        }
        *last = MembershipStatus { at: clock::rfc3339(clock::unix_millis()), said, is_problem };
        if let Err(error) = self.folder.save_status(&last) {
            tracing::warn!(%error, "the result of the last attempt cannot be stored");
        }
    }
}

/// A text of the platform without control characters, cut to a line.
fn printable(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(300).collect()
}
