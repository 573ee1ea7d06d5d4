//! QUERY and QUERY_ROUTE: addresses, GIDs and paths in the formats that programs request.

use super::commands::{Answer, Step};
use super::manager::Manager;
use super::ports::PORT;
use super::sockaddr::SockAddr;
use super::uapi::{PathData, Plain, QueryAddrResp, QueryRouteResp, UserPath};
use cm::Path;
use hwspec::layout::Layout as _;
use hwspec::wire::mad::sa::{PathRecord, Selector};
use libc::c_int;

/// `IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL`.
const PRIMARY: u32 = 1 << 0 | 1 << 1 | 1 << 5;
/// The default partition.
const DEFAULT_PKEY: u16 = 0xffff;

impl Manager {
    /// Addresses and path in one response.
    ///
    /// # Errors
    /// ENOSPC; ENOENT.
    pub fn query_route(&mut self, number: u32, answer: Answer) -> Result<Step, c_int> {
        answer.holds(size_of::<QueryRouteResp>())?;
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let mut resp = QueryRouteResp::zero();
        resp.src = id.src.map_or([0; 28], |src| src.ip_storage());
        resp.dst = id.dst.map_or([0; 28], |dst| dst.ip_storage());
        if let Some(port) = id.at.and_then(|at| self.ports.get(at.port)) {
            (resp.node_guid, resp.port_num) = (port.info.guid, PORT);
            resp.num_paths = u32::from(id.path.is_some());
            resp.route[0] = match &id.path {
                Some(path) => user_path(path),
                None => UserPath {
                    dgid: id.remote_gid,
                    sgid: port.gid(id.at.map_or(0, |at| at.gid)),
                    pkey: DEFAULT_PKEY.to_be_bytes(),
                    ..UserPath::zero()
                },
            };
        }
        // The device index would follow. Only the kernel has one; without it librdmacm uses the GUID.
        answer.put(resp.bytes()).map(|()| Step::Done)
    }

    /// One of them.
    ///
    /// # Errors
    /// ENOSPC; ENOSYS: an unknown query.
    pub fn query(&mut self, number: u32, option: u32, answer: Answer) -> Result<Step, c_int> {
        const ADDR: u32 = 0;
        const PATH: u32 = 1;
        const GID: u32 = 2;
        match option {
            ADDR => self.query_addr(number, answer),
            PATH => self.query_path(number, answer),
            GID => self.query_gid(number, answer),
            _ => Err(libc::ENOSYS),
        }
    }

    fn addresses(
        &self,
        number: u32,
        src: Option<SockAddr>,
        dst: Option<SockAddr>,
        answer: Answer,
    ) -> Result<Step, c_int> {
        answer.holds(size_of::<QueryAddrResp>())?;
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let mut resp = QueryAddrResp::zero();
        if let Some(src) = src {
            (resp.src, resp.src_size) = (src.storage(), src.len() as u16);
        }
        if let Some(dst) = dst {
            (resp.dst, resp.dst_size) = (dst.storage(), dst.len() as u16);
        }
        if let Some(port) = id.at.and_then(|at| self.ports.get(at.port)) {
            (resp.node_guid, resp.port_num) = (port.info.guid, PORT);
            resp.pkey = DEFAULT_PKEY.to_be_bytes();
        }
        answer.put(resp.bytes()).map(|()| Step::Done)
    }

    fn query_addr(&self, number: u32, answer: Answer) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        self.addresses(number, id.src, id.dst, answer)
    }

    fn query_gid(&self, number: u32, answer: Answer) -> Result<Step, c_int> {
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let own = id.at.and_then(|at| Some(self.ports.get(at.port)?.gid(at.gid))).unwrap_or([0; 16]);
        let pkey = if id.at.is_some() { DEFAULT_PKEY } else { 0 };
        let as_ib = |address: Option<SockAddr>, gid| match address {
            Some(ib @ SockAddr::Ib { .. }) => Some(ib),
            other => Some(SockAddr::Ib { gid, pkey, sid: other.map_or(0, |a| id.service_id(&a)), mask: 0 }),
        };
        self.addresses(number, as_ib(id.src, own), as_ib(id.dst, id.remote_gid), answer)
    }

    fn query_path(&self, number: u32, answer: Answer) -> Result<Step, c_int> {
        answer.holds(8)?;
        let id = self.ids.get(number).ok_or(libc::ENOENT)?;
        let mut out = vec![0; 8];
        out[..4].copy_from_slice(&u32::from(id.path.is_some()).to_ne_bytes());
        if let Some(path) = id.path.filter(|_| answer.room >= 8 + size_of::<PathData>()) {
            out.extend_from_slice(PathData { flags: PRIMARY, reserved: 0, record: record(&path) }.bytes());
        }
        answer.put(&out).map(|()| Step::Done)
    }
}

fn user_path(path: &Path) -> UserPath {
    UserPath {
        dgid: path.remote_gid,
        sgid: path.local_gid,
        dlid: path.remote_lid.to_be_bytes(),
        slid: path.local_lid.to_be_bytes(),
        raw_traffic: 0,
        flow_label: path.flow_label.to_be_bytes(),
        reversible: 1,
        mtu: path.mtu.into(),
        pkey: path.pkey.to_be_bytes(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: 1,
        sl: path.sl,
        mtu_selector: Selector::Exactly.raw(),
        rate_selector: Selector::Exactly.raw(),
        rate: path.rate,
        packet_life_time_selector: Selector::Exactly.raw(),
        packet_life_time: path.packet_life_time,
        preference: 0,
    }
}

/// A path as a PathRecord of the subnet administrator (IBTA 15.2.5.16): reversible, a single one.
fn record(path: &Path) -> [u8; 64] {
    let mut record = PathRecord::zeroed();
    record
        .set()
        .dgid(path.remote_gid)
        .sgid(path.local_gid)
        .dlid(path.remote_lid)
        .slid(path.local_lid)
        .flow_label(path.flow_label & 0xf_ffff)
        .hop_limit(path.hop_limit)
        .traffic_class(path.traffic_class)
        .reversible(true)
        .numb_path(1)
        .pkey(path.pkey)
        .sl(path.sl & 0xf)
        .mtu_selector(Selector::Exactly)
        .mtu(path.mtu & 0x3f)
        .rate_selector(Selector::Exactly)
        .rate(path.rate & 0x3f)
        .life_time_selector(Selector::Exactly)
        .life_time(path.packet_life_time & 0x3f);
    *record.as_bytes()
}

/// The primary path among those that a program supplies.
///
/// # Errors
/// EINVAL: there is none, or an incomplete one.
pub fn read_path_data(value: &[u8]) -> Result<Path, c_int> {
    if value.len() % size_of::<PathData>() != 0 {
        return Err(libc::EINVAL);
    }
    let mut given = value.chunks(size_of::<PathData>()).map(PathData::read);
    let data = given.find(|data| data.flags == PRIMARY).ok_or(libc::EINVAL)?;
    let record = PathRecord::read(&data.record);
    Ok(Path {
        remote_gid: record.dgid(),
        local_gid: record.sgid(),
        remote_lid: record.dlid(),
        local_lid: record.slid(),
        // Within a subnet, InfiniBand packets need no GRH; Ethernet has no LIDs.
        grh: record.dlid() == 0 || record.hop_limit() > 1,
        flow_label: record.flow_label(),
        hop_limit: record.hop_limit(),
        traffic_class: record.traffic_class(),
        pkey: record.pkey(),
        sl: record.sl(),
        mtu: record.mtu(),
        rate: record.rate(),
        packet_life_time: record.life_time(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_is_read_as_written() {
        let path = Path {
            local_gid: [1; 16],
            remote_gid: [2; 16],
            flow_label: 0x1_2345,
            hop_limit: 64,
            traffic_class: 7,
            sl: 3,
            mtu: 5,
            rate: 9,
            packet_life_time: 18,
            ..Path::default()
        };
        let data = PathData { flags: PRIMARY, reserved: 0, record: record(&path) };
        assert_eq!(read_path_data(data.bytes()), Ok(path));
        assert_eq!(data.record[44..50], [1, 0x23, 0x45, 64, 7, 0x81]);
        assert_eq!(data.record[54..57], [0x85, 0x89, 0x92]);
        let other = PathData { flags: 1, ..data };
        assert_eq!(read_path_data(other.bytes()), Err(libc::EINVAL));
        assert_eq!(read_path_data(&data.bytes()[1..]), Err(libc::EINVAL));
    }
}
