-- Remember with which lane a visit ended.
UPDATE promotion SET upto = :upto
