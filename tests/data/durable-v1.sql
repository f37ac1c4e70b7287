BEGIN TRANSACTION;
CREATE TABLE anabranch_blob (digest blob not null unique, value blob not null) strict;
CREATE TABLE anabranch_mail (
            id integer primary key autoincrement, run integer not null, kind text not null,
            name text not null, value blob not null, time real not null
        ) strict;
INSERT INTO "anabranch_mail" VALUES(1,10,'cancel','',cast('"not wanted"' as blob),1700000055.0);
INSERT INTO "anabranch_mail" VALUES(2,6,'signal','next',cast('"It goes on."' as blob),1700000055.0);
CREATE TABLE anabranch_row (
            run integer not null, seq integer not null, ident blob not null, kind text not null,
            value blob, digest blob, time real not null, unique (run, seq)
        ) strict;
INSERT INTO "anabranch_row" VALUES(2,1,X'CF838B114CBAEC9DDB43395577562F14','result',cast('3' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,2,X'560A2B8F06323D6E1BAF8074A1FB46EA','result',cast('3' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,3,X'3900409B0CCA052D76625719D67FED31','result',cast('["load x","é 😀"]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,4,X'EEEA19A4A1F40044BAA552586A0266BE','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,5,X'3BB3BCF2010E60DD86469223AB4A8EBB','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,6,X'EEEA19A4A1F40044BAA552586A0266BE','gave',cast('"mail 0"' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,7,X'3BB3BCF2010E60DD86469223AB4A8EBB','gave',cast('"mail 0"' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,8,X'37431AEAC3A1A7165320D551239B405C','transaction',cast('[["[\"create table paid (cents)\",[]]", []], ["[\"insert into paid values (?)\",[5]]", []]]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,9,X'C97B21AEDD36453AAA95867FC813B965','result',cast('["load caught","é 😀"]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,10,X'6B242623FD0A9EBFAD29E7AA446099BF','failure',cast('{"type":["_old_journals","Failure"],"message":"caught","args":["caught"],"attributes":{"code":7},"notes":["anabranch: failed in Commander/Over#1/Fails#9"]}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,11,X'06D6005420E42D74B2E538DA39C61806','once',cast('"2023-11-14T22:13:20+00:00"' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,12,X'AEACDC5C7D662DAED5480C98FBC1DD05','once',cast('0.8444218515250481' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,13,X'C7A43784484FDD8AD0AE1BDC5E010164','result',cast('{"sums":[3,3],"loaded":["load x","é 😀"],"error":["caught",7],"now":"2023-11-14T22:13:20+00:00","random":0.8444218515250481,"sent":["mail 0","mail 0"]}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(2,14,X'C7A43784484FDD8AD0AE1BDC5E010164','over',X'',NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(3,1,X'43E79A97AEE9D1FE70F99FACE979971F','result',cast('["load for good","é 😀"]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(3,2,X'C7A43784484FDD8AD0AE1BDC5E010164','failure',cast('{"type":["_old_journals","Failure"],"message":"for good","args":["for good"],"attributes":{"code":7},"notes":["anabranch: failed in Commander/Fails#1"]}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(3,3,X'C7A43784484FDD8AD0AE1BDC5E010164','over',X'',NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,1,X'19E4086183CC08227640B73D942319E6','result',cast('["load round 2","é 😀"]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,2,X'C7A43784484FDD8AD0AE1BDC5E010164','result',cast('2' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,3,X'A2BE5D8B45794B0523E87912B44A343F','root',cast('{"class": "_old_journals:Rounds", "version": 1, "inputs": {"left": 1}, "key": null, "free": "83781ed6fe3a5e29cc959773bf885d72", "retried": true, "path": [["c7a43784484fdd8ad0ae1bdc5e010164", "dafd6f4f149852b79edff3a8204bfef6"]], "body": false, "put": {"options": {"timeout": null, "priority": 0, "policy": "fail_fast", "retry": {"attempts": 2, "on": ["builtins:Exception"], "backoff": 0.0, "factor": 2.0, "max_backoff": 60.0, "jitter": 1.0, "within": null}}, "callbacks": []}}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,4,X'C7A43784484FDD8AD0AE1BDC5E010164','over',X'',NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,5,X'031830B5661AD795BD72109AD68CF4E1','result',cast('["load round 1","é 😀"]' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(4,6,X'ECAC47486F256355E19C09BF7FCCB2DE','waits',cast('{"kind": "signal", "name": "go", "seconds": null, "until": null}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,1,X'EEF6717D3224CAE8F846A8981677E96E','message',cast('{"after":"","message":{"content":"Be short.","role":"system"},"talk":"talk"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,2,X'4E3AB0C1691AB0D35D288B9BE0B1D9B4','message',cast('{"after":"bb16c69733d37384769d4bc2d6fa2114","message":{"content":"Hello, é 😀","role":"user"},"talk":"talk"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,3,X'305F29DDE4EF902DA3A1CCA9147A7C00','reply',cast('{"message":{"content":"After 2.","finish_reason":"stop","role":"assistant","usage":{"input_tokens":2}},"taken":[["scripted",{"input_tokens":2}]]}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,4,X'F66D0AE31ABC6C1C3464B1F853045DBE','message',cast('{"above":"f4a8981d","after":"36d6c612957311c3b32343a7104864a1","reply":3,"talk":"talk"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,5,X'50DDFCD7CAE6C286518AACF03E51D8C0','message',cast('{"after":"5d081ffc7fa27767cebe0095193c22cd","message":{"content":"refund","role":"user"},"talk":"talk"}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,6,X'009481B8ADF0AE47322CB32A866295F1','reply',cast('{"message":{"content":"I ask.","finish_reason":"tool_calls","role":"assistant","tool_calls":[{"id":"c","name":"refund","raw":"{\"cents\": 500}"}],"usage":{"input_tokens":4}},"taken":[["scripted",{"input_tokens":4}]]}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(5,7,X'23AF30D50FEA7FE46931BC439EF08B06','question',cast('{"kind": "approval", "tool": "refund", "arguments": {"cents": 500}, "path": "Commander/Asks#1/respond#6/CallTools#9/ask_first:refund#10", "agent": null, "session_id": null}' as blob),NULL,1700000000.0);
INSERT INTO "anabranch_row" VALUES(6,1,X'EEF6717D3224CAE8F846A8981677E96E','message',cast('{"after":"","message":{"content":"Be short.","role":"system"},"talk":"talk"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(6,2,X'4E3AB0C1691AB0D35D288B9BE0B1D9B4','message',cast('{"after":"bb16c69733d37384769d4bc2d6fa2114","message":{"content":"Hello, é 😀","role":"user"},"talk":"talk"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(6,3,X'305F29DDE4EF902DA3A1CCA9147A7C00','reply',cast('{"message":{"content":"After 2.","finish_reason":"stop","role":"assistant","usage":{"input_tokens":2}},"taken":[["scripted",{"input_tokens":2}]]}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(6,4,X'F66D0AE31ABC6C1C3464B1F853045DBE','message',cast('{"above":"f4a8981d","after":"36d6c612957311c3b32343a7104864a1","reply":3,"talk":"talk"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(6,5,X'4164E3C98D98F2B91F5D295687C31B71','waits',cast('{"kind": "signal", "name": "next", "seconds": null, "until": null}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(7,1,X'EEEA19A4A1F40044BAA552586A0266BE','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(7,2,X'157DAF6050C78D1A398540852DC7A2DF','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(7,3,X'EEEA19A4A1F40044BAA552586A0266BE','gave',cast('"mail 0"' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(8,1,X'EEEA19A4A1F40044BAA552586A0266BE','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(8,2,X'C30C9768EAEA2D73DF73E1644F8AA5AC','intent',cast('{"by": "c5c91d124c3463538f363526757a3607", "name": "mail"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(8,3,X'EEEA19A4A1F40044BAA552586A0266BE','gave',cast('"mail 0"' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,1,X'06D6005420E42D74B2E538DA39C61806','once',cast('"2023-11-14T22:13:25+00:00"' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,2,X'F9CF8DCEAAE54EF8F3577C95EC68681F','waits',cast('{"kind": "sleep", "name": "", "seconds": 172800.0, "until": 1700172805.0}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,3,X'4567D2646E56E4D11A33594DF5B4C6B7','intent',cast('{"by": "f2725290ec244f49b286089ea3d95e03", "name": "mail", "of": "67e0cc149647d5f183a0e1354ea470ca", "in": "d5d92988e596fa7c788cd1c704f7144c"}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,4,X'4567D2646E56E4D11A33594DF5B4C6B7','gave',cast('"mail 0"' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,5,X'D5D92988E596FA7C788CD1C704F7144C','attempt',cast('{"began": 1700000005.0, "due": 1700000055.0, "usage": {}}' as blob),NULL,1700000005.0);
INSERT INTO "anabranch_row" VALUES(9,6,X'0C28DBDDF019A3C3252EDA6004A77915','takes',cast('{"effect": "4567d2646e56e4d11a33594df5b4c6b7", "in": "7f254ef60cf1ad92515408e65b5b70ba"}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(9,7,X'D5D92988E596FA7C788CD1C704F7144C','attempt',cast('{"began": 1700000055.0, "due": 1700000105.0, "usage": {}}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,1,X'EEF6717D3224CAE8F846A8981677E96E','message',cast('{"after":"","message":{"content":"Be short.","role":"system"},"talk":"talk"}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,2,X'4E3AB0C1691AB0D35D288B9BE0B1D9B4','message',cast('{"after":"bb16c69733d37384769d4bc2d6fa2114","message":{"content":"Hello, é 😀","role":"user"},"talk":"talk"}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,3,X'305F29DDE4EF902DA3A1CCA9147A7C00','reply',cast('{"message":{"content":"After 2.","finish_reason":"stop","role":"assistant","usage":{"input_tokens":2}},"taken":[["scripted",{"input_tokens":2}]]}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,4,X'F66D0AE31ABC6C1C3464B1F853045DBE','message',cast('{"above":"f4a8981d","after":"36d6c612957311c3b32343a7104864a1","reply":3,"talk":"talk"}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,5,X'4164E3C98D98F2B91F5D295687C31B71','waits',cast('{"kind": "signal", "name": "next", "seconds": null, "until": null}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,6,X'C7A43784484FDD8AD0AE1BDC5E010164','cancelled',cast('{"reason": "not wanted", "whom": ["c7a43784484fdd8ad0ae1bdc5e010164"], "failed": false, "by": [["c7a43784484fdd8ad0ae1bdc5e010164", "c7a43784484fdd8ad0ae1bdc5e010164"]], "after": 0}' as blob),NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,7,X'C7A43784484FDD8AD0AE1BDC5E010164','over',X'',NULL,1700000055.0);
INSERT INTO "anabranch_row" VALUES(10,8,X'1049B86818F9A5950BC71181E3B19801','letter',cast('{"id": 1, "value": null}' as blob),NULL,1700000055.0);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'pending','_old_journals:Sum',1,'pending',cast('{"numbers": {"$tuple": [4, 5]}, "name": "accepted"}' as blob),'later',1700000000.0,1700000000.0,0,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(2,'over','_old_journals:Over',1,'completed',cast('{}' as blob),'',1700000000.0,1700000000.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(3,'failed','_old_journals:Fails',1,'failed',cast('{"text": "for good"}' as blob),'',1700000000.0,1700000000.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(4,'round','_old_journals:Rounds',1,'suspended',cast('{"left": 2}' as blob),'',1700000000.0,1700000000.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(5,'approval','_old_journals:Asks',1,'suspended',cast('{"question": "refund"}' as blob),'',1700000000.0,1700000005.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(6,'talk','_old_journals:Asks',1,'suspended',cast('{"question": "And now?"}' as blob),'',1700000005.0,1700000005.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(7,'doubt','_old_journals:Mails',1,'suspended',cast('{"n": 1}' as blob),'',1700000005.0,1700000005.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(8,'not done','_old_journals:Mails',1,'suspended',cast('{"n": 2}' as blob),'',1700000005.0,1700000005.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(9,'tries','_old_journals:Tries',1,'suspended',cast('{}' as blob),'',1700000005.0,1700000055.0,1,'',NULL,0,0,NULL);
INSERT INTO "anabranch_run" VALUES(10,'cancelled','_old_journals:Asks',1,'cancelled',cast('{"question": "Never asked"}' as blob),'',1700000055.0,1700000055.0,2,'',NULL,0,5,NULL);
CREATE TABLE paid (cents);
INSERT INTO "paid" VALUES(5);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',10);
INSERT INTO "sqlite_sequence" VALUES('anabranch_mail',2);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 1;
