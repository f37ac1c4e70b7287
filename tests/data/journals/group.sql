BEGIN TRANSACTION;
CREATE TABLE anabranch_blob (digest blob not null unique, value blob not null) strict;
CREATE TABLE anabranch_check (value blob not null) strict;
INSERT INTO "anabranch_check" VALUES(X'616E616272616E63682DCEF54F');
CREATE TABLE anabranch_key (
            digest blob primary key, run integer not null, time real not null
        ) strict, without rowid;
CREATE TABLE anabranch_mail (
            id integer primary key autoincrement, run integer not null, kind text not null,
            name text not null, value blob not null, time real not null
        ) strict;
CREATE TABLE anabranch_purge (run integer primary key) strict;
CREATE TABLE anabranch_row (
            run integer not null, seq integer not null, ident blob not null, kind text not null,
            value blob, digest blob, time real not null, unique (run, seq)
        ) strict;
INSERT INTO "anabranch_row" VALUES(1,1,X'EB804DF26AB6EE68D08B1792772AFEF2','reply',X'7B226D657373616765223A7B22636F6E74656E74223A22416674657220323A207468617420697320616C6C2E222C2266696E6973685F726561736F6E223A2273746F70222C22726F6C65223A22617373697374616E74222C227573616765223A7B22696E7075745F746F6B656E73223A322C226F75747075745F746F6B656E73223A317D7D2C2274616B656E223A5B5B226D222C7B22696E7075745F746F6B656E73223A322C226F75747075745F746F6B656E73223A317D5D5D7DE4E18E3E',NULL,1.70000000009451365475e+09);
INSERT INTO "anabranch_row" VALUES(1,2,X'4E97B0836607C6DE183BD4AC5E89F8C1','reply',X'7B226D657373616765223A7B22636F6E74656E74223A22416674657220323A207468617420697320616C6C2E222C2266696E6973685F726561736F6E223A2273746F70222C22726F6C65223A22617373697374616E74222C227573616765223A7B22696E7075745F746F6B656E73223A322C226F75747075745F746F6B656E73223A317D7D2C2274616B656E223A5B5B226D222C7B22696E7075745F746F6B656E73223A322C226F75747075745F746F6B656E73223A317D5D5D7DF3597F3A',NULL,1.70000000010399603838e+09);
CREATE TABLE anabranch_run (
            id integer primary key autoincrement, run_id text not null unique,
            class_name text not null, version integer not null, state text not null,
            inputs blob not null, queue text not null, created real not null,
            updated real not null, fence integer not null default 0,
            owner text not null default '', lease_until real,
            recoveries integer not null default 0, claimed_at_row integer not null default 0,
            error blob, clock real not null default 0
        ) strict;
INSERT INTO "anabranch_run" VALUES(1,'group','_killed_runs:Groups',1,'running',X'7B7D3D09E543','',1.70000000006330847742e+09,1.7000000000834720135e+09,1,'host:1',NULL,0,0,NULL,0.0);
CREATE INDEX anabranch_run_state on anabranch_run (state, queue);
CREATE INDEX anabranch_row_digest on anabranch_row (digest) where digest is not null;
CREATE INDEX anabranch_mail_run on anabranch_mail (run, id);
CREATE INDEX anabranch_key_time on anabranch_key (time, run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('anabranch_run',1);
COMMIT;
PRAGMA application_id = 1097752930;
PRAGMA user_version = 2;
