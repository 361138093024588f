import pytest
LANES="(select array_agg(l.tenant) from postrow.lanes('{q}') l),(select array_agg(l.priority) from postrow.lanes('{q}') l),(select array_agg(null::timestamptz) from postrow.lanes('{q}') l)"
CALLS=("claim('deep',100,tenant=>'t',lease=>'1 day')","claim('deep',100,lease=>'1 day')","claim('scheduled',100,tenant=>'t')","claim('scheduled',100)","claim('wide',100)","claim('wide',1000)","lanes('wide')","lanes('scheduled')","lanes('deep')","claim('deep',100,tenant=>'t',worker=>'w',lease=>'1 day')",
  "claim_lanes('deep','{t}','{0}','{null}',100,100,lease=>'1 day')","claim_lanes('scheduled','{t,t}','{0,1}','{null,null}',100,100)",
       "claim_lanes('wide',"+LANES.format(q='wide')+",1,1000)","claim_lanes('wide',"+LANES.format(q='wide')+",1,100)","claim_lanes('none',"+LANES.format(q='wide')+",1,100)",
       "sweep('leases',100)","release_claim('11111111-1111-1111-1111-111111111111','deep')")
ST=("ack(%(tenants)s,%(ids)s,%(tokens)s)","fail(%(tenants)s,%(ids)s,%(tokens)s,array_fill('e'::text,array[cardinality(%(ids)s)]))","bury(%(tenants)s,%(ids)s,%(tokens)s,array_fill('e'::text,array[cardinality(%(ids)s)]))","release(%(tenants)s,%(ids)s,%(tokens)s)","extend(%(tenants)s,%(ids)s,%(tokens)s,'1 day')")
import sys
@pytest.mark.parametrize("w",["a","c"])
def test_full(_full,w):
    import sys; P=sys.modules[[m for m in sys.modules if m.endswith("plans.conftest") or 'plans/conftest' in m][0]]
    p=_full[1] if w=='a' else P.Plans(_full[0])
    run(p,w,100,CALLS)
def run(p,w,b,calls):
    for c in calls: 
        p.conn.execute("set postrow.swept_to = ''")
        print(w,f'{c[:48]:48}',meas(p,c.replace('100',str(b)) if b!=100 else c))
    for s in ST:
        for stale in (0,1):
            cl=p.claimed(b)
            import uuid
            if stale: cl['tokens'][0]=uuid.uuid4()
            print(w,f'{s[:10]+" stale"*stale:48}',meas(p,s,cl))
def test_empt(emptied):
    run(emptied,'b',50,[c for c in CALLS if 'wide' not in c and 'scheduled' not in c])

def meas(p,*a):
    try: return p.measure(*a)
    except BaseException as e: return "Work(given=1, rows=9999999, pages=9999999)"
