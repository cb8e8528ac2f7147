//! Live copies that send batches, each acknowledged: sends, counts the refused records, tries again.

use std::time::Duration;

use ledge_base::backoff::{Backoff, random};
use ledge_egress::ConfiguredDestination;
use ledge_service::shutdown::Shutdown;
use tokio::time::{Instant, timeout};

use super::copy::{RecordBatchError, RecordBatchSender};
use super::feed::{FINAL_SEND_TIMEOUT, LiveCopyQueue, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use crate::status::LiveCopyRecord;

/// Time that records of this copy's own connections wait for others. A server that ends the connection after each
/// request causes a connection record with each request, and sent at once that record would cause the next request.
const OWN_RECORDS_DELAY: Duration = Duration::from_mins(1);

/// A live copy that sends batches.
pub(super) struct BatchedLiveCopy {
    requester: Box<dyn RecordBatchSender>,
    /// The name of the copy, which is the purpose of its connections.
    name: &'static str,
    /// The reason why nothing may be sent: others could read it.
    refusal: Option<String>,
}

impl BatchedLiveCopy {
    pub fn new(requester: Box<dyn RecordBatchSender>, name: &'static str, destination: &ConfiguredDestination) -> Self {
        let refusal = destination.plaintext_refusal().map(|problem| format!("audit.{} {problem}", destination.key));
        Self { requester, name, refusal }
    }

    /// Sends until the daemon stops.
    pub async fn run(self, mut feed: LiveCopyQueue, shutdown: Shutdown) {
        let mut backoff = Backoff::new(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        loop {
            let pause = tokio::select! {
                pause = self.send_next(&mut feed, &mut backoff) => pause,
                () = shutdown.requested() => {
                    feed.receive_available();
                    // Records that are not sent by then are lost, as are later ones.
                    let _ = timeout(FINAL_SEND_TIMEOUT, self.send_batch(&mut feed)).await;
                    return;
                }
            };

            let Some(pause) = pause else { continue };
            tokio::select! {
                () = feed.receive_until(Instant::now() + pause) => {}
                () = shutdown.requested() => return,
            }
        }
    }

    /// Waits for records and sends them. Returns the pause before the next batch where it failed.
    async fn send_next(&self, feed: &mut LiveCopyQueue, backoff: &mut Backoff) -> Option<Duration> {
        feed.receive_batch(OWN_RECORDS_DELAY, |record| is_own(record, self.name)).await;
        let error = match self.send_batch(feed).await {
            Ok(()) => {
                feed.report_success();
                backoff.reset();
                return None;
            }
            Err(error) => error,
        };

        let (reason, retry_after) = match error {
            RecordBatchError::Temporary { reason, retry_after } => (reason, retry_after),
            RecordBatchError::Denied { reason } => {
                backoff.give_way();
                (reason, None)
            }
            // The next records may be taken, so these are not sent again.
            RecordBatchError::Refused { reason } => {
                let records = feed.oldest().len();
                feed.remove_sent(records, records as u64);
                (reason, None)
            }
        };
        feed.report_failure(&reason);
        Some(backoff.pause(random()).max(retry_after.unwrap_or_default()))
    }

    /// Sends the oldest records that wait.
    async fn send_batch(&self, feed: &mut LiveCopyQueue) -> Result<(), RecordBatchError> {
        let records = feed.oldest();
        if records.is_empty() {
            return Ok(());
        }
        if let Some(reason) = self.refusal.clone() {
            return Err(RecordBatchError::Denied { reason });
        }
        let acknowledged = self.requester.send(&records).await?;
        feed.remove_sent(records.len(), acknowledged.refused.min(records.len() as u64));
        Ok(())
    }
}

/// Returns true if a record is of a connection of the copy named `name`.
pub(super) fn is_own(record: &LiveCopyRecord, name: &str) -> bool {
    let purpose = format!("\"purpose\":\"{name}\"");
    record.action == "connection_opened"
        && record.line.windows(purpose.len()).any(|window| window == purpose.as_bytes())
}
