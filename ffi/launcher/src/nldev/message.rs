//! Netlink messages: parsed without trust, and built in the order and alignment of the kernel's.

use super::codes::*;

/// Bytes of `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// Maximum size of a datagram of a dump: the kernel's initial size, which fits any reader's buffer.
const DATAGRAM: usize = 3776;

/// `struct nlmsghdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the message with its header.
    pub len: u32,
    /// Client and command.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// Sequence number, chosen by the asker.
    pub seq: u32,
    /// The asker's port.
    pub port: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            len: u32_at(bytes, 0)?,
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            seq: u32_at(bytes, 8)?,
            port: u32_at(bytes, 12)?,
        })
    }

    /// Appends it to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.len.to_ne_bytes());
        out.extend(self.kind.to_ne_bytes());
        out.extend(self.flags.to_ne_bytes());
        out.extend(self.seq.to_ne_bytes());
        out.extend(self.port.to_ne_bytes());
    }

    /// The RDMA netlink client that is addressed.
    pub fn client(&self) -> u16 {
        self.kind >> 10
    }

    /// The client's command.
    pub fn command(&self) -> u16 {
        self.kind & 0x3ff
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A request: its header and what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: Header,
    /// All its bytes, including the header.
    pub bytes: &'a [u8],
}

/// The requests in one datagram. An incomplete one at its end is ignored.
pub fn requests(mut datagram: &[u8]) -> impl Iterator<Item = Request<'_>> {
    std::iter::from_fn(move || {
        let header = Header::parse(datagram)?;
        let len = usize::try_from(header.len).ok().filter(|len| *len >= HEADER)?;
        let bytes = datagram.get(..len)?;
        datagram = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Request { header, bytes })
    })
}

/// An attribute's payload does not fit its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Request<'a> {
    /// The last attribute of type `kind`.
    fn find(&self, kind: u16) -> Option<&'a [u8]> {
        let mut rest = self.bytes.get(HEADER..)?;
        let mut found = None;
        while let (Some(len), Some(this)) = (u16_at(rest, 0), u16_at(rest, 2)) {
            let Some(payload) = rest.get(4..usize::from(len)) else { break };
            if this & !NLA_FLAGS == kind {
                found = Some(payload);
            }
            rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        found
    }

    /// A 32-bit attribute, if present.
    pub fn u32(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        self.find(kind).map(|p| u32_at(p, 0).ok_or(Malformed)).transpose()
    }

    /// A terminated string, if present.
    pub fn text(&self, kind: u16) -> Result<Option<&'a str>, Malformed> {
        let text = |p: &'a [u8]| {
            let end = p.iter().position(|b| *b == 0).ok_or(Malformed)?;
            std::str::from_utf8(&p[..end]).map_err(|_| Malformed)
        };
        self.find(kind).map(text).transpose()
    }

    /// Its bytes, with a request for an acknowledgement.
    pub fn acknowledged(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        if let Some(flags) = bytes.get_mut(6..8) {
            flags.copy_from_slice(&(self.header.flags | NLM_F_ACK).to_ne_bytes());
        }
        bytes
    }

    /// The errno in an error message or acknowledgement; 0 is success.
    pub fn errno(&self) -> Option<i32> {
        let code = (self.header.kind == NLMSG_ERROR).then(|| u32_at(self.bytes, HEADER)).flatten()?;
        Some((code as i32).wrapping_neg())
    }

    /// True if an attribute is present.
    pub fn has(&self, kind: u16) -> bool {
        self.find(kind).is_some()
    }
}

/// The attributes of a message, or of a nest in one.
#[derive(Clone, Debug, Default)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Any payload.
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        // An attribute that is too long is truncated.
        let payload = &payload[..payload.len().min(usize::from(u16::MAX) - 7)];
        self.0.extend(((payload.len() + 4) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(payload);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// 8 bits.
    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    /// 32 bits.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// 64 bits; readers accept any alignment.
    pub fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A terminated string.
    pub fn text(&mut self, kind: u16, text: &str) -> &mut Self {
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// A nest of further ones.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let mut inside = Self::default();
        fill(&mut inside);
        self.bytes(kind, &inside.0)
    }

    /// Appends `others`.
    pub fn append(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    /// Their bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Length so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// The sender of a request, and how it wants errors reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Its socket's port.
    pub port: u32,
    /// May change the network (CAP_NET_ADMIN).
    pub admin: bool,
    /// Takes explanations of errors (`NETLINK_EXT_ACK`).
    pub ext_ack: bool,
    /// Does not want its request back with an error (`NETLINK_CAP_ACK`).
    pub cap_ack: bool,
}

/// Answers to one socket: datagrams in the order in which they are read.
#[derive(Clone, Debug, Default)]
pub struct Replies {
    /// The datagrams.
    pub datagrams: Vec<Vec<u8>>,
    /// True if further messages of the current dump go into the last datagram.
    open: bool,
}

impl Replies {
    /// One message.
    pub fn one(&mut self, to: &Request<'_>, asker: &Asker, command: u16, attributes: &Attributes) {
        let bytes = message(to, asker, CLIENT_NLDEV << 10 | command, 0, &attributes.0);
        self.datagrams.push(bytes);
    }

    /// One message of a dump.
    pub fn part(&mut self, to: &Request<'_>, asker: &Asker, command: u16, attributes: &Attributes) {
        let bytes = message(to, asker, CLIENT_NLDEV << 10 | command, NLM_F_MULTI, &attributes.0);
        match self.datagrams.last_mut() {
            Some(last) if self.open && last.len() + bytes.len() <= DATAGRAM => last.extend(bytes),
            _ => self.datagrams.push(bytes),
        }
        self.open = true;
    }

    /// The end of a dump: 0, or the errno that ended it.
    pub fn done(&mut self, to: &Request<'_>, asker: &Asker, errno: i32) {
        let bytes = message(to, asker, NLMSG_DONE, NLM_F_MULTI, &(-errno).to_ne_bytes());
        self.datagrams.push(bytes);
        self.open = false;
    }

    /// An error, or with 0 an acknowledgement.
    pub fn error(&mut self, to: &Request<'_>, asker: &Asker, errno: i32, why: Option<&str>) {
        let mut payload = (-errno).to_ne_bytes().to_vec();
        let capped = errno == 0 || asker.cap_ack;
        match capped {
            true => payload.extend(&to.bytes[..HEADER]),
            false => payload.extend(to.bytes),
        }
        let mut flags = if capped { NLM_F_CAPPED } else { 0 };
        if let Some(why) = why.filter(|_| asker.ext_ack) {
            payload.resize(payload.len().next_multiple_of(4), 0);
            let mut attributes = Attributes::default();
            attributes.text(NLMSGERR_ATTR_MSG, why);
            payload.extend(attributes.0);
            flags |= NLM_F_ACK_TLVS;
        }
        self.datagrams.push(message(to, asker, NLMSG_ERROR, flags, &payload));
        self.open = false;
    }
}

fn message(to: &Request<'_>, asker: &Asker, kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let len = HEADER + payload.len();
    let mut out = Vec::with_capacity(len.next_multiple_of(4));
    Header { len: len as u32, kind, flags, seq: to.header.seq, port: asker.port }.put(&mut out);
    out.extend(payload);
    out.resize(len.next_multiple_of(4), 0);
    out
}

/// A request as programs write it.
#[cfg(test)]
pub fn request(command: u16, flags: u16, seq: u32, attributes: &Attributes) -> Vec<u8> {
    let len = (HEADER + attributes.0.len()) as u32;
    let mut out = Vec::new();
    Header { len, kind: CLIENT_NLDEV << 10 | command, flags: NLM_F_REQUEST | flags, seq, port: 0 }
        .put(&mut out);
    out.extend(&attributes.0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_again_and_the_last_of_a_type_counts() {
        let mut a = Attributes::default();
        a.u32(attr::DEV_INDEX, 1)
            .text(attr::CHARDEV_TYPE, "uverbs")
            .u32(attr::DEV_INDEX, 7)
            .u8(attr::DEV_DIM, 1);
        let bytes = request(cmd::GET_CHARDEV, NLM_F_ACK, 9, &a);
        let all: Vec<_> = requests(&bytes).collect();
        assert_eq!(all.len(), 1);
        let r = all[0];
        assert_eq!(
            (r.header.client(), r.header.command(), r.header.seq),
            (CLIENT_NLDEV, cmd::GET_CHARDEV, 9)
        );
        assert_eq!(r.u32(attr::DEV_INDEX), Ok(Some(7)));
        assert_eq!(r.text(attr::CHARDEV_TYPE), Ok(Some("uverbs")));
        assert_eq!((r.has(attr::DEV_DIM), r.u32(attr::PORT_INDEX)), (true, Ok(None)));
        assert_eq!(r.u32(attr::DEV_DIM), Err(Malformed));
    }

    #[test]
    fn cut_and_lying_messages_end_the_list() {
        let good = request(cmd::GET, 0, 1, &Attributes::default());
        for cut in 0..good.len() {
            assert_eq!(requests(&good[..cut]).count(), 0);
        }
        for len in [0u32, 15, 17, u32::MAX] {
            let mut lying = good.clone();
            lying[..4].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(requests(&lying).count(), 0, "{len}");
        }
        assert_eq!(requests(&[good.clone(), good].concat()).count(), 2);
    }

    #[test]
    fn attributes_with_lying_lengths_are_passed_over_without_end() {
        let mut a = Attributes::default();
        a.u32(attr::DEV_INDEX, 1);
        let mut bytes = request(cmd::GET, 0, 1, &a);
        for len in [0u16, 1, 3, 9, u16::MAX] {
            bytes[HEADER..HEADER + 2].copy_from_slice(&len.to_ne_bytes());
            let r = requests(&bytes).next().unwrap();
            assert_eq!(r.u32(attr::DEV_INDEX), Ok(None), "{len}");
        }
    }

    #[test]
    fn an_error_repeats_the_request_unless_it_is_not_wanted_and_explains_where_it_may() {
        let mut a = Attributes::default();
        a.u32(attr::DEV_INDEX, 1);
        let bytes = request(cmd::GET, NLM_F_ACK, 5, &a);
        let r = requests(&bytes).next().unwrap();
        let asker = Asker { port: 77, ..Asker::default() };
        let mut out = Replies::default();
        out.error(&r, &asker, libc::EINVAL, Some("why"));
        out.error(&r, &Asker { cap_ack: true, ext_ack: true, ..asker }, libc::EINVAL, Some("why"));
        out.error(&r, &asker, 0, None);
        let header = |i: usize| Header::parse(&out.datagrams[i]).unwrap();
        assert_eq!(header(0), Header { len: 36 + 8, kind: NLMSG_ERROR, flags: 0, seq: 5, port: 77 });
        assert_eq!(out.datagrams[0][16..20], (-libc::EINVAL).to_ne_bytes());
        assert_eq!((header(1).flags, header(1).len), (NLM_F_CAPPED | NLM_F_ACK_TLVS, 36 + 8));
        assert_eq!((header(2).flags, header(2).len), (NLM_F_CAPPED, 36));
    }

    #[test]
    fn a_dump_is_cut_into_datagrams_that_fit_small_buffers() {
        let bytes = request(cmd::GET, NLM_F_DUMP, 5, &Attributes::default());
        let r = requests(&bytes).next().unwrap();
        let (mut out, asker) = (Replies::default(), Asker::default());
        for _ in 0..100 {
            let mut a = Attributes::default();
            a.text(attr::DEV_NAME, &"x".repeat(100));
            out.part(&r, &asker, cmd::GET, &a);
        }
        out.done(&r, &asker, 0);
        assert!(out.datagrams.iter().all(|d| d.len() <= DATAGRAM));
        assert_eq!(out.datagrams.iter().map(|d| requests(d).count()).sum::<usize>(), 101);
    }
}
